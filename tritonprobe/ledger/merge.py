"""All processes of a directory as one ledger: what a scrape shows of the living, the dead and the folded.

Counters and histograms are added up over every process there has been; gauges over those that live, by their metric's
rule. No counter falls between two readings, whatever dies, forks or folds meanwhile: sums are exact (rounded once, at
the end), and a reading during which the base changed is made again. What cannot be read is named and left out. Of the
exemplars of a series the one that is worth most is shown, whoever left it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import fsum, isfinite
from pathlib import Path

from tritonprobe.ledger.derive import Readings
from tritonprobe.ledger.fold import DEAD_FILES, fold
from tritonprobe.ledger.layout import BASE_NAME, FormatError
from tritonprobe.ledger.memory import MemoryLedger
from tritonprobe.ledger.reading import EMPTY_BASE, generation, ledger_files, read_base
from tritonprobe.ledger.schema import ERRORS, METRICS, SERIES_DROPPED, Merge, Metric
from tritonprobe.ledger.store import Family, Labels, Traced
from tritonprobe.ledger.totals import BaseSource, FileSource, Numbers, Totals

log = logging.getLogger("tritonprobe")

TRIES = 16
"""Readings begun before giving up: each failed one means that someone folded 65 files during it."""
MAX_TOLD = 1000
"""How many different problems are logged and counted."""

Rule = Callable[[Iterable[float]], float]
_GAUGES: dict[Merge, Rule] = {"sum": fsum, "max": max, "min": min}


class DirectoryReader:
    """Reads the ledger files of `path`, within one budget of series for all: at least what a file there is made for.

    ``problems`` says what the last reading left out, and why, by file name.
    """

    def __init__(self, path: Path, budget: int = 10_000) -> None:
        self.path = path
        self.problems: dict[str, str] = {}
        self._totals = Totals()
        self._base = BaseSource(EMPTY_BASE, self._totals)
        self._files: dict[Path, FileSource] = {}
        self._told: set[tuple[str, str]] = set()
        self._shown = _Shown(budget)

    def collect(self) -> Iterator[Family]:
        """Every family that has samples, in the schema's order. Never raises."""
        return iter(self._shown.families(self._read))

    def _read(self) -> Totals | None:
        """The directory's numbers; None if they cannot be had now, and the last ones stand."""
        problems: dict[str, str] = {}
        try:
            if not any(self._pass(problems) for _ in range(TRIES)):
                return None
        except OSError as error:
            problems["."] = _sentence(error)
            self._totals.end_gauges()
        self._report(problems)
        self._shown.allow(max((file.budget for file in self._files.values()), default=0))
        if sum(file.foldable for file in self._files.values()) > DEAD_FILES:
            try:
                fold(self.path)
            except (OSError, FormatError):
                log.debug("tritonprobe: %s: dead ledger files could not be folded", self.path, exc_info=True)
        return self._totals

    def _pass(self, problems: dict[str, str]) -> bool:
        """Reads everything once; False if a fold came in between. Raises OSError if the directory cannot be listed."""
        problems.clear()
        begun_with = self._load_base(problems)
        paths = ledger_files(self.path)
        self._totals.clear()
        self._base.add()
        before, self._files = self._files, {}
        for path in paths:
            if path.stem in self._base.folded:
                continue
            file = before.get(path) or FileSource(path)
            try:
                file.add_to(self._totals)
            except FileNotFoundError:
                continue  # folded meanwhile, which the base will say, or removed
            except (OSError, FormatError) as error:
                problems[path.name] = _sentence(error)
                continue
            self._files[path] = file
            if file.problem is not None:
                problems[path.name] = file.problem
        if self._load_base(problems) != begun_with:
            return False
        self._totals.forget_missing()
        return True

    def _load_base(self, problems: dict[str, str]) -> bytes | None:
        """Brings the base up to date; one that cannot be read leaves the last one in place. Returns which it is."""
        try:
            now = generation(self.path)
            if now != self._base.generation:
                self._base = BaseSource(read_base(self.path), self._totals)
        except (OSError, FormatError) as error:
            problems[BASE_NAME] = _sentence(error)
            return None
        if self._base.problem is not None:
            problems[BASE_NAME] = self._base.problem
        return now

    def _report(self, problems: dict[str, str]) -> None:
        """Keeps what is wrong now; logs and counts each thing once."""
        self.problems = problems
        for told in problems.items():
            if told not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(told)
                self._shown.faults += 1
                log.warning("tritonprobe: %s: %s", self.path / told[0], told[1])


class _Shown(MemoryLedger):
    """What scrapes show: each reading fills it anew. Which series fit the budget is decided once for each of them."""

    def __init__(self, budget: int) -> None:
        self.faults = 0
        self._drops: Counter[str] = Counter()
        self._processes = 0
        super().__init__(budget)

    def allow(self, budget: int) -> None:
        """A process may have so many series. It never shrinks: what was shown under its own name stays there.

        Nor does it grow once there is no memory of whom it turned away: they would leave `other`, which would fall.
        """
        if len(self._turned_away) < self._budget:
            self._budget = max(self._budget, budget)

    def families(self, read: Callable[[], Totals | None]) -> list[Family]:
        with self._lock:
            totals = read()
            if totals is not None:
                self._processes = totals.in_progress
                self._traced.clear()
                for metric in METRICS:
                    self._fill(metric, self._with_own(metric, totals.series[metric.name]), totals.traced)
            return list(self.collect())

    def _fill(
        self,
        metric: Metric,
        series: dict[Labels, list[Numbers]],
        traced: Mapping[tuple[str, Labels], Traced | None],
    ) -> None:
        gathered: dict[int, list[Numbers]] = {}
        for labels, found in series.items():
            slots = [_finite(numbers) for numbers in found]
            if not all(slots):
                continue  # it came too late for this reading, or is a gauge taken away
            place = id(self._open(metric, labels))
            before = gathered.get(place)  # `other`, of several
            gathered[place] = slots if before is None else [[*a, *b] for a, b in zip(before, slots, strict=True)]
            if (found_there := traced.get((metric.name, labels))) is not None:
                self._keep(metric, self._counted_under(metric, labels), found_there)
        rule: Rule = _GAUGES[metric.merge] if metric.kind == "gauge" else max if metric.kind == "info" else fsum
        for labels, shown in list(self._series[metric.name].items()):
            if id(shown) in gathered:
                for i, numbers in enumerate(gathered[id(shown)]):
                    shown[i] = numbers[0] if len(numbers) == 1 else rule(numbers)
            elif labels not in metric.created:
                self._remove(metric, labels)

    def _with_own(self, metric: Metric, series: dict[Labels, list[Numbers]]) -> dict[Labels, list[Numbers]]:
        """Adds what the reader counts itself. Asked in the schema's order: what a reading drops is in that reading."""
        own: dict[Labels, float] = {}
        if metric is SERIES_DROPPED:
            own = {(name,): drops for name, drops in self._drops.items()}
        elif metric is ERRORS and self.faults:
            own = {("ledger_file",): self.faults}
        return {**series, **{labels: [[*series.get(labels, [[]])[0], count]] for labels, count in own.items()}}

    def _in_progress(self, readings: Readings) -> int:
        del readings  # which are merged by rank
        return self._processes

    def _is_full(self, metric: Metric, labels: Labels) -> bool:
        # Once turned away, always: what `other` has counted must not leave it when a gauge makes room.
        turned_away = (metric.name, labels) in self._turned_away or len(self._turned_away) >= self._budget
        return turned_away or super()._is_full(metric, labels)

    def _dropped(self, metric: Metric) -> None:
        self._drops[metric.name] += 1


def _finite(numbers: Numbers) -> Numbers:
    return numbers if all(map(isfinite, numbers)) else [number for number in numbers if isfinite(number)]


def _sentence(error: OSError | FormatError) -> str:
    return f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
