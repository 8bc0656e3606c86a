"""Which launches of a window count, and whether records have their order: in C (`matching.c`), or by numpy. Pure.

Both ways find the same. Each array operation of numpy gives the interpreter's lock away, and waits for it where another
thread launches all the time: C does in one step what would take a dozen of them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonprobe import native
from tritonprobe.gpu.launch_log import Logged
from tritonprobe.gpu.records import ALL, Chosen
from tritonprobe.gpu.spans import Ints

SOURCE = Path(__file__).with_name("matching.c")
NEVER, SURELY, PERHAPS = range(3)
"""Whether a launch of some kind leaves a record."""


@functools.cache
def compiled() -> Any:
    """The module of C, or None."""
    return native.load(SOURCE)


@dataclass(frozen=True, slots=True)
class Edges:
    """Places in the order around the two switches of a window."""

    opening: int
    opened: int
    closing: int
    closed: int


@dataclass(frozen=True, slots=True)
class Sifted:
    """The launches that may have left a record, in the order in which they began."""

    chosen: Chosen
    certain: npt.NDArray[np.bool_]  # it did, or else one is missing
    counts: Ints  # how many of each kind, and how many of these for certain


def sift(logged: Logged, sort: Ints, edges: Edges) -> Sifted:
    """`sort` is NEVER, SURELY or PERHAPS, for each kind."""
    module = compiled()
    if module is None:
        return _sift(logged, sort, edges)
    places, certain = np.empty(len(logged), np.int64), np.empty(len(logged), np.bool_)
    counts = np.zeros((len(sort), 2), np.int64)
    count, in_order = module.sift(
        logged.before, logged.after, logged.returned, logged.kind, sort, places, certain, counts,
        edges.opening, edges.opened, edges.closing, edges.closed,
    )  # fmt: skip
    return _in_order(logged.before, places[:count], certain[:count], counts, in_order)


def _sift(logged: Logged, sort: Ints, edges: Edges) -> Sifted:
    of = sort[logged.kind]
    certain = (logged.before > edges.opened) & (logged.after < edges.closing) & (logged.returned != 0) & (of == SURELY)
    places = np.flatnonzero((of != NEVER) & (logged.after >= edges.opening) & (logged.before <= edges.closed))
    certain, kind = certain[places], logged.kind[places]
    counts = np.stack([np.bincount(each, minlength=len(sort)) for each in (kind, kind[certain])], axis=1)
    before = logged.before[places]
    return _in_order(logged.before, places, certain, counts, not np.any(before[1:] < before[:-1]))


def _in_order(before: Ints, places: Ints, certain: npt.NDArray[np.bool_], counts: Ints, in_order: bool) -> Sifted:
    if not in_order:
        order = np.argsort(before[places], kind="stable")
        return Sifted(places[order], certain[order], counts)
    if len(places) and int(places[-1]) - int(places[0]) == len(places) - 1:
        return Sifted(slice(int(places[0]), int(places[-1]) + 1), certain, counts)
    return Sifted(places, certain, counts)


def pair(which: Ints, key_of_class: Ints, kind: Ints, key_of_kind: Ints) -> tuple[Chosen, Chosen]:
    """The n-th record of each key, and the n-th launch: places of records, and one for one of launches.

    There are as many of both. The keys are those of classes and of kinds; -1 is none.
    """
    module = compiled()
    if module is not None:
        records, launches = np.empty(len(which), np.int64), np.empty(len(kind), np.int64)
        count = module.pair(which, key_of_class, kind, key_of_kind, records, launches)
        if count >= 0:
            return _all_or(records, count), _all_or(launches, count)
    return _pair(key_of_class[which], key_of_kind[kind])


def _all_or(places: Ints, count: int) -> Chosen:
    return ALL if count == len(places) else places[:count]


def _pair(record_key: Ints, launch_key: Ints) -> tuple[Chosen, Chosen]:
    # Sorting numbers of 16 bits takes a tenth of the time, and there are seldom more names and grids.
    small = np.int16 if max(record_key.max(initial=0), launch_key.max(initial=0)) < 1 << 15 else np.int64
    records, launches = np.flatnonzero(record_key >= 0), np.flatnonzero(launch_key >= 0)
    return (
        records[np.argsort(record_key[records].astype(small), kind="stable")],
        launches[np.argsort(launch_key[launches].astype(small), kind="stable")],
    )
