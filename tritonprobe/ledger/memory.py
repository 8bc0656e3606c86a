"""A ledger in this process's memory: lists for cells, a lock for new series, none to count.

Exact under the interpreter lock; lost with the process. The same interface is what a ledger shared between processes
will offer.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from tritonprobe.ledger.schema import METRICS, SERIES_DROPPED, Metric
from tritonprobe.ledger.store import Cell, Family, HistogramSample, Labels, Sample
from tritonprobe.model import OTHER

# Labels that a bound may replace by `other`. The rest are closed lists, or identify what an alert is about.
_OPEN_LABELS = frozenset({"kernel", "bucket", "op", "cause", "error", "model"})


class MemoryLedger:
    """Keeps every series of one process. ``budget`` bounds their number; a histogram counts as its buckets plus two."""

    def __init__(self, budget: int = 10_000) -> None:
        self._budget = budget
        self._used = 0
        self._lock = threading.Lock()
        self._series: dict[str, dict[Labels, list[float]]] = {metric.name: {} for metric in METRICS}
        self._turned_away: set[tuple[str, Labels]] = set()
        for metric in METRICS:
            for labels in metric.created:
                self._open(metric, labels)

    def cell(self, metric: Metric, labels: Labels = ()) -> Cell:
        return self._open(metric, labels)

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1.0) -> None:
        self._open(metric, labels)[0] += amount

    def set(self, metric: Metric, labels: Labels, value: float | None) -> None:
        if value is None:
            with self._lock:
                if self._series[metric.name].pop(labels, None) is not None:
                    self._used -= 1
            return
        self._open(metric, labels)[0] = value

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        slots = self._open(metric, labels)
        slots[bisect_left(metric.bounds, value)] += 1
        slots[-1] += value

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            with self._lock:
                series = list(self._series[metric.name].items())
            if not series:
                continue
            if metric.kind == "histogram":
                yield Family(metric, [HistogramSample(labels, tuple(s[:-1]), s[-1]) for labels, s in series])
            else:
                yield Family(metric, [Sample(labels, s[0]) for labels, s in series])

    def _open(self, metric: Metric, labels: Labels) -> list[float]:
        found = self._series[metric.name].get(labels)
        if found is not None:
            return found
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} takes the labels {metric.labels}, not {labels}")
        with self._lock:
            return self._create(metric, labels)

    def _create(self, metric: Metric, labels: Labels) -> list[float]:
        series = self._series[metric.name]
        if labels in series:
            return series[labels]
        size = len(metric.bounds) + 2 if metric.kind == "histogram" else 1
        if self._used + size > self._budget and labels not in metric.created:
            overflow = tuple(OTHER if name in _OPEN_LABELS else v for name, v in zip(metric.labels, labels, strict=True))
            if overflow != labels:
                self._count_drop(metric, labels)
                return self._create(metric, overflow)
            # The `other` series itself: at most one a metric and closed label set, so it may exceed the budget.
        self._used += size
        series[labels] = [0.0] * size
        return series[labels]

    def _count_drop(self, metric: Metric, labels: Labels) -> None:
        """Counts a series once, as long as the (bounded) memory of what was turned away lasts; then every attempt."""
        if (metric.name, labels) in self._turned_away:
            return
        if len(self._turned_away) < self._budget:
            self._turned_away.add((metric.name, labels))
        self._series[SERIES_DROPPED.name].setdefault((metric.name,), [0.0])[0] += 1
