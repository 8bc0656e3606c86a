"""The interface every ledger has: cells to count in, and a reading of all families.

Callers keep cells, so that a count on a hot path is ``cell[0] += 1`` and nothing else. Under the interpreter lock such
an increment loses nothing.
"""

from __future__ import annotations

import math
import re
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


_TRACE_ID = re.compile("(?!0+$)[0-9a-f]{32}")
_SPAN_ID = re.compile("(?!0+$)[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """The span that an observation was made in, by W3C's ids. Raises ValueError for what is none."""

    trace_id: str
    span_id: str

    def __post_init__(self) -> None:
        if not (_TRACE_ID.fullmatch(self.trace_id) and _SPAN_ID.fullmatch(self.span_id)):
            raise ValueError(f"no ids of a trace and a span in lowercase hex: {self.trace_id!r}, {self.span_id!r}")


@dataclass(frozen=True, slots=True)
class Traced:
    """An observation whose span is known: one of them is kept with its histogram, see `worth_keeping`."""

    value: float
    unix_ns: int
    exemplar: Exemplar


FADES_SECONDS = 15.0
"""In which an observation e times as large as another one is worth as much as that. Prometheus reads as often."""


def worth_keeping(one: Traced | None, other: Traced | None) -> Traced | None:
    """The larger of the two, or the later one if it is later by more than `FADES_SECONDS` for each factor of e.

    One exemplar is kept of a series: the slow request that somebody looks for must still be there at the next scrape,
    whatever came after it. It is an order of all observations, so that of many the same one stays in any order.
    """
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=_worth)


def _worth(traced: Traced) -> tuple[float, int, str, str]:
    fading = math.log(max(traced.value, 1e-12)) + traced.unix_ns / 1e9 / FADES_SECONDS
    return fading, traced.unix_ns, traced.exemplar.trace_id, traced.exemplar.span_id


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """``counts`` holds one number a bucket, not cumulated, the last one above every bound. A summary has that only."""

    labels: Labels
    counts: tuple[float, ...]
    sum: float
    traced: Traced | None = None


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

    def observe(self, metric: Metric, labels: Labels, value: float, exemplar: Exemplar | None = None) -> None:
        """Adds one observation to a histogram, which may keep its `exemplar`. Raises ValueError below zero."""

    def merge(self, metric: Metric, labels: Labels, numbers: Sequence[float], traced: Traced | None = None) -> None:
        """Adds many observations to a histogram or summary at once: one number a bucket, then their sum.

        `traced` is one of them whose span is known.
        """
