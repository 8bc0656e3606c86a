"""The interface every ledger has: cells to count in, and a reading of all families.

Callers keep cells, so that a count on a hot path is ``cell[0] += 1`` and nothing else. Under the interpreter lock such
an increment loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tritonprobe.ledger.schema import Metric

Labels = tuple[str, ...]
Slots: TypeAlias = "list[float] | memoryview[float]"
"""The numbers of one series: `Metric.slots` of them."""


class Cell(Protocol):
    """One number: ``cell[0]``."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """``counts`` holds one number a bucket, not cumulated, the last one above every bound."""

    labels: Labels
    counts: tuple[float, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Family:
    metric: Metric
    samples: Sequence[Sample | HistogramSample]


class Readable(Protocol):
    def collect(self) -> Iterator[Family]:
        """Every family of the schema that has samples, in the schema's order; the `memory` tier is derived."""


class Ledger(Readable, Protocol):
    def cell(self, metric: Metric, labels: Labels = ()) -> Cell:
        """The cell of a counter's series, created at 0. Beyond a bound: that of `other`, and the drop is counted."""

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1.0) -> None:
        """Adds to a counter or gauge (cold paths). Raises ValueError if a counter would fall."""

    def set(self, metric: Metric, labels: Labels, value: float | None) -> None:
        """Sets a gauge or info series; None removes it (unmeasured is absent)."""

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Adds one observation to a histogram. Raises ValueError below zero."""
