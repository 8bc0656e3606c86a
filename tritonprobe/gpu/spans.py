"""Times of a window: counted, added up, laid over each other: in C (`spans.c`), or by numpy. Pure.

Both ways find the same. C looks at each time once, and lets other threads of the program go on meanwhile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tritonprobe import native

Ints: TypeAlias = "npt.NDArray[np.int64]"

SOURCE = Path(__file__).with_name("spans.c")


@functools.cache
def compiled() -> Any:
    """The module of C, or None."""
    return native.load(SOURCE)


def shift(times: Ints, by: int) -> None:
    """Makes all times later by so much, but 0, which is no time, stays 0."""
    module = compiled()
    if module is None:
        np.add(times, by, out=times, where=times != 0)
    else:
        module.shift(times, by)


@dataclass(frozen=True, slots=True)
class Spans:
    """Times from ``since`` to ``until``, at least 0, each in one of so many rows: the i-th in ``row_of[of[i]]``.

    Those whose row is -1 are in none. With an empty ``of`` all are in the first row.
    """

    since: Ints
    until: Ints
    of: Ints
    row_of: Ints
    rows: int


NOTHING: Ints = np.empty(0, np.int64)


def all_in_one(since: Ints, until: Ints) -> Spans:
    return Spans(since, until, NOTHING, np.zeros(1, np.int64), 1)


def tally(spans: Spans, edges: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """How many fell between the edges, and above the last, in each row; and the sum of each row.

    A value on an edge falls below it.
    """
    module = compiled()
    if module is None:
        return _tally(spans, edges)
    cells, totals = np.zeros((spans.rows, len(edges) + 1), np.int64), np.zeros(spans.rows, np.int64)
    columns = (np.ascontiguousarray(each, np.int64) for each in (spans.of, spans.row_of, spans.since, spans.until))
    module.tally(*columns, edges, cells, totals)
    return cells, totals


def _tally(spans: Spans, edges: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    row = spans.row_of[spans.of] if len(spans.of) else np.repeat(spans.row_of[:1], len(spans.since))
    chosen = row >= 0
    row, value = row[chosen], np.maximum(spans.until - spans.since, 0)[chosen]
    width = len(edges) + 1
    cells = np.bincount(row * width + np.searchsorted(edges, value, side="left"), minlength=spans.rows * width)
    totals = np.zeros(spans.rows, np.int64)
    np.add.at(totals, row, value)
    return cells.reshape(spans.rows, width), totals


def busy(start: Ints, end: Ints) -> int:
    """How long at least one of them lasts."""
    module = compiled()
    if module is None:
        return _busy(start, end)
    found: int = module.busy(np.ascontiguousarray(start), np.ascontiguousarray(end))
    if found < 0:
        order = np.argsort(start, kind="stable")
        found = module.busy(start[order], end[order])
    return found


def _busy(start: Ints, end: Ints) -> int:
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    fresh = np.maximum(start, np.concatenate((start[:1], reached[:-1])))
    return int(np.maximum(end - fresh, 0).sum())
