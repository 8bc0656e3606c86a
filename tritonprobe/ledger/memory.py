"""A ledger in this process's memory: lists for cells, a lock for new series, none to count.

Exact under the interpreter lock; lost with the process. The same interface is what a ledger shared between processes
will offer. A forked child goes on from a copy of its parent's numbers.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tritonprobe.forks import tell_in_child
from tritonprobe.ledger.derive import MEMORY, MemoryTier, Readings
from tritonprobe.ledger.schema import COLD_IN_PROGRESS, DISTRIBUTIONS, LOOKUPS, METRICS, SERIES_DROPPED, Metric
from tritonprobe.ledger.store import (
    Cell,
    Exemplar,
    Family,
    HistogramSample,
    Labels,
    Sample,
    Slots,
    Traced,
    worth_keeping,
)
from tritonprobe.model import OTHER

MAX_LABEL = 256
"""Characters of a label's value; what is beyond is cut."""

# Labels that a bound may replace by `other`. The rest are closed lists, or identify what an alert is about.
_OPEN_LABELS = frozenset({"kernel", "bucket", "op", "cause", "error", "model"})


class MemoryLedger:
    """Keeps every series of one process. ``budget`` bounds how many a scrape shows.

    Beyond it a new series counts in its metric's `other`. Those, and what the schema creates from the start, always
    exist: they are few, and without them an overflow or a first event would be lost.
    """

    def __init__(self, budget: int = 10_000) -> None:
        self._budget = budget
        self._used = 0
        # Reentrant: a finalizer may run inside the lock, on the same thread, and count something.
        self._lock = threading.RLock()
        self._series: dict[str, dict[Labels, Slots]] = {metric.name: {} for metric in METRICS}
        self._traced: dict[tuple[str, Labels], Traced] = {}
        self._turned_away: set[tuple[str, Labels]] = set()
        self._memory_tier = MemoryTier()
        for metric in METRICS:
            for labels in metric.created:
                self._open(metric, labels)
        tell_in_child(self)

    def cell(self, metric: Metric, labels: Labels = ()) -> Cell:
        return self._open(metric, labels)

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1.0) -> None:
        if not amount >= 0 and metric.kind == "counter":
            raise ValueError(f"{metric.name} is a counter and cannot take {amount}")
        self._open(metric, labels)[0] += amount

    def set(self, metric: Metric, labels: Labels, value: float | None) -> None:
        if value is not None:
            self._open(metric, labels, value)[0] = value
            return
        with self._lock:
            self._remove(metric, clean(labels))

    def observe(self, metric: Metric, labels: Labels, value: float, exemplar: Exemplar | None = None) -> None:
        if not value >= 0:
            raise ValueError(f"{metric.name} cannot take {value}: its sum would fall")
        slots = self._open(metric, labels)
        slots[bisect_left(metric.bounds, value)] += 1
        slots[-1] += value
        if exemplar is not None:
            with self._lock:
                # After the numbers: whoever reads it first finds its bucket counted.
                self._keep(metric, self._counted_under(metric, labels), Traced(value, time.time_ns(), exemplar))

    def merge(self, metric: Metric, labels: Labels, numbers: Sequence[float], traced: Traced | None = None) -> None:
        if len(numbers) != metric.slots or not all(number >= 0 for number in numbers):
            raise ValueError(f"{metric.name} takes {metric.slots} numbers that are not negative, not {numbers}")
        slots = self._open(metric, labels)
        for place, number in enumerate(numbers):
            slots[place] += number
        if traced is not None:
            with self._lock:
                self._keep(metric, self._counted_under(metric, labels), traced)

    def collect(self) -> Iterator[Family]:
        families: dict[str, list[Sample | HistogramSample]] = {}
        readings: dict[str, list[Sample]] = {}
        for metric in METRICS:
            with self._lock:
                series = list(self._series[metric.name].items())
            if metric.kind in DISTRIBUTIONS:
                traced = self._traced.get  # before the slots, see `observe`
                copies = [(labels, traced((metric.name, labels)), tuple(slots)) for labels, slots in series]
                families[metric.name] = [HistogramSample(labels, s[:-1], s[-1], t) for labels, t, s in copies]
            else:
                readings[metric.name] = [Sample(labels, slots[0]) for labels, slots in series]
                families[metric.name] = [*readings[metric.name]]
        further = (sample for sample in readings[LOOKUPS.name] if sample.labels[-1] != MEMORY)
        families[LOOKUPS.name] = [*further, *self._memory_tier.samples(readings, self._in_progress(readings))]
        for metric in METRICS:
            if families[metric.name]:
                yield Family(metric, families[metric.name])

    def after_fork(self) -> None:
        """For a forked child, whose copies of the locks may be held by threads that it does not have."""
        self._lock = threading.RLock()

    def _in_progress(self, readings: Readings) -> int:
        """How many processes have a cold call in progress."""
        return len(readings[COLD_IN_PROGRESS.name])

    def _make(self, metric: Metric, labels: Labels, first: float) -> Slots:
        """The slots of a new series, the first one at `first`. Under the lock."""
        del labels  # for ledgers that write them down
        return [first, *[0.0] * (metric.slots - 1)]

    def _keep(self, metric: Metric, labels: Labels, traced: Traced) -> None:
        """Keeps a traced observation of a series, unless the one that is there is worth more. Under the lock."""
        kept = worth_keeping(self._traced.get((metric.name, labels)), traced)
        if kept is traced:
            self._show(metric, labels, traced)

    def _show(self, metric: Metric, labels: Labels, traced: Traced) -> None:
        self._traced[metric.name, labels] = traced

    def _counted_under(self, metric: Metric, labels: Labels) -> Labels:
        """The labels of the series that `_open` gives for `labels`: these, or those that a bound put in their place."""
        labels = clean(labels)
        return labels if labels in self._series[metric.name] else overflow(metric, labels)

    def _remove(self, metric: Metric, labels: Labels) -> Slots | None:
        self._traced.pop((metric.name, labels), None)
        found = self._series[metric.name].pop(labels, None)
        if found is not None:
            self._used -= metric.cost
        return found

    def _open(self, metric: Metric, labels: Labels, first: float = 0.0) -> Slots:
        found = self._series[metric.name].get(labels)
        if found is not None:
            return found
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} takes the labels {metric.labels}, not {labels}")
        with self._lock:
            return self._create(metric, clean(labels), first)

    def _create(self, metric: Metric, labels: Labels, first: float) -> Slots:
        series = self._series[metric.name]
        found = series.get(labels)
        if found is not None:
            return found
        if labels not in metric.created and self._is_full(metric, labels):
            rest = overflow(metric, labels)
            if rest != labels:
                self._count_drop(metric, labels)
                return self._create(metric, rest, first)
        self._used += metric.cost
        return series.setdefault(labels, self._make(metric, labels, first))

    def _is_full(self, metric: Metric, labels: Labels) -> bool:
        del labels  # for ledgers that write them down
        if metric.limit is not None and len(self._series[metric.name]) >= metric.limit:
            return True
        return self._used + metric.cost > self._budget

    def _count_drop(self, metric: Metric, labels: Labels) -> None:
        """Counts a series once, as long as the (bounded) memory of what was turned away lasts; then every attempt."""
        if (metric.name, labels) in self._turned_away:
            return
        if len(self._turned_away) < self._budget:
            self._turned_away.add((metric.name, labels))
        self._dropped(metric)

    def _dropped(self, metric: Metric) -> None:
        series, labels = self._series[SERIES_DROPPED.name], (metric.name,)
        if labels not in series:  # beyond the budget, too
            series[labels] = self._make(SERIES_DROPPED, labels, 0.0)
        series[labels][0] += 1


def overflow(metric: Metric, labels: Labels) -> Labels:
    """The series that takes the counts of one that a bound turned away."""
    named = zip(metric.labels, labels, strict=True)
    return tuple(OTHER if name in _OPEN_LABELS else value for name, value in named)


def clean(labels: Labels) -> Labels:
    """What any exposition format can carry: text of bounded length without lone surrogates."""
    return tuple(str(value)[:MAX_LABEL].encode("utf-8", "replace").decode("utf-8") for value in labels)
