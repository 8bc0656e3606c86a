"""The numbers of one reading, series by series, and who brings them: files and the base.

A slot's list stays the same object from reading to reading, so that a file looks its series up once and then only
appends: a scrape of many processes costs some ten nanoseconds a number.
"""

from __future__ import annotations

from array import array
from math import nan
from pathlib import Path

from tritonprobe.ledger.directory import holds
from tritonprobe.ledger.layout import BY_ID, Base
from tritonprobe.ledger.reading import LedgerFile, Series, opened
from tritonprobe.ledger.schema import COLD_IN_PROGRESS, DISTRIBUTIONS, METRICS, Metric
from tritonprobe.ledger.store import Labels, Traced, worth_keeping

SUMMED = ("counter", *DISTRIBUTIONS)
"""Kinds that are added up over all processes there have been; the others only tell of those that live."""

# `derive` needs calls to be read before the cold calls in progress, and lookups after them: three looks at each file.
_LOOKS = 3
_place = METRICS.index(COLD_IN_PROGRESS)
_LOOK = {metric.name: (i >= _place) + (i > _place) for i, metric in enumerate(METRICS)}

Numbers = list[float]
"""What one slot of a series has in each process."""


class Totals:
    def __init__(self) -> None:
        self.series: dict[str, dict[Labels, list[Numbers]]] = {metric.name: {} for metric in METRICS}
        self.traced: dict[tuple[str, Labels], Traced | None] = {}
        """The exemplar of each series that is worth most, of all processes'."""
        self.in_progress = 0
        """Processes with a cold call in progress."""

    def of(self, metric: Metric, labels: Labels) -> list[Numbers]:
        """The lists of a series, one for each slot."""
        found = self.series[metric.name].get(labels)
        if found is None:
            found = self.series[metric.name][labels] = [[] for _ in range(metric.slots)]
        return found

    def keep(self, metric: Metric, labels: Labels, traced: Traced | None) -> None:
        """Offers an exemplar; the one that is worth most stays."""
        if traced is not None:
            key = (metric.name, labels)
            self.traced[key] = worth_keeping(self.traced.get(key), traced)

    def clear(self) -> None:
        """Begins a new reading."""
        self.in_progress = 0
        self.traced.clear()
        for series in self.series.values():
            for slots in series.values():
                for numbers in slots:
                    numbers.clear()

    def forget_missing(self) -> None:
        """After a whole reading: forgets the series that nobody has any more."""
        for series in self.series.values():
            for labels in [labels for labels, slots in series.items() if not slots[0]]:
                del series[labels]

    def end_gauges(self) -> None:
        """What is left once every process has ended."""
        self.in_progress = 0
        for metric in METRICS:
            if metric.kind not in SUMMED:
                self.series[metric.name].clear()


class FileSource:
    """One process's file."""

    def __init__(self, path: Path) -> None:
        self.alive = True
        self._file = LedgerFile(path)
        self._placed = 0
        # For each look: where a number goes, and which slot it is in.
        self._summed: tuple[list[tuple[Numbers, int]], ...] = tuple([] for _ in range(_LOOKS))
        self._living: tuple[list[tuple[Numbers, int]], ...] = tuple([] for _ in range(_LOOKS))
        self._started: list[int] = []
        self._histograms: list[Series] = []

    @property
    def budget(self) -> int:
        """How many series its process may have."""
        return 0 if self._file.header is None else self._file.header.plan.budget

    @property
    def foldable(self) -> bool:
        return not self.alive and self.problem is None

    @property
    def problem(self) -> str | None:
        """What the last reading had to leave out."""
        if self._file.damage is not None:
            return f"{self._file.damage}; the {len(self._file.series)} series before it are read"
        return left_out(self._file.unknown)

    def add_to(self, totals: Totals) -> None:
        """Reads the file and adds its numbers, or none. Raises OSError and FormatError; then it is of no more use."""
        with opened(self._file.path) as handle:
            self.alive = holds(handle)  # before its numbers: the last ones of a dead process are final
            looks = [self._file.snapshot(handle) for _ in range(_LOOKS)]
        for series in self._file.series[self._placed :]:
            sort = self._summed if series.metric.kind in SUMMED else self._living
            place = zip(totals.of(series.metric, series.labels), range(series.first, series.end), strict=True)
            sort[_LOOK[series.metric.name]].extend(place)
            if series.metric is COLD_IN_PROGRESS:
                self._started.append(series.first)
            if series.metric.kind == "histogram":
                self._histograms.append(series)
        self._placed = len(self._file.series)
        for values, summed, living in zip(looks, self._summed, self._living, strict=True):
            values.extend(array("d", [nan]) * (len(looks[-1]) - len(values)))  # series that came after this look
            for numbers, slot in summed:
                numbers.append(values[slot])
            if self.alive:
                for numbers, slot in living:
                    numbers.append(values[slot])
        for series in self._histograms:
            totals.keep(series.metric, series.labels, series.traced(looks[_LOOK[series.metric.name]]))
        started = looks[_LOOK[COLD_IN_PROGRESS.name]]
        totals.in_progress += self.alive and any(started[slot] == started[slot] for slot in self._started)


class BaseSource:
    """The processes folded into one base."""

    def __init__(self, base: Base, totals: Totals) -> None:
        self.generation = base.generation
        self._totals = totals
        self.folded = {uuid.hex() for uuid in base.folded}
        self._places: list[tuple[Numbers, tuple[float, ...]]] = []
        self._traced: list[tuple[Metric, Labels, Traced | None]] = []
        self._unknown = 0
        for found in base.sums:
            metric = BY_ID.get(found.schema_id)
            if metric is None or len(found.parts) != metric.slots or len(found.labels) != len(metric.labels):
                self._unknown += 1
            else:
                self._places.extend(zip(totals.of(metric, found.labels), found.parts, strict=True))
                self._traced.append((metric, found.labels, found.traced))

    @property
    def problem(self) -> str | None:
        return left_out(self._unknown)

    def add(self) -> None:
        for numbers, parts in self._places:
            numbers.extend(parts)
        for kept in self._traced:
            self._totals.keep(*kept)


def left_out(series: int) -> str | None:
    """The sentence about series of metrics that this version does not have."""
    return f"{series} series left out: another version of tritonprobe wrote them" if series else None
