"""How much of a request's life a stall covered. Pure: arithmetic on (start, end) in nanoseconds, half open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonprobe.model import Exposure

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as sorted intervals that neither overlap nor touch; empty and reversed ones count for nothing."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The time in both; `a` and `b` as `union` returns them."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def overlap(intervals: Sequence[Interval], start: int, end: int) -> int:
    """Nanoseconds of `intervals` (as `union` returns them) between `start` and `end`."""
    return sum(max(0, min(stop, end) - max(begin, start)) for begin, stop in intervals)


def coalesce(intervals: Sequence[Interval], bound: int) -> list[Interval]:
    """At most `bound` intervals that cover `intervals` (as `union` returns them), at the least extra time.

    The narrowest gaps are closed, so that a bounded memory errs towards too much time, never too little.
    """
    excess = len(intervals) - bound
    if excess <= 0:
        return list(intervals)
    gaps = sorted(range(1, len(intervals)), key=lambda i: intervals[i][0] - intervals[i - 1][1])
    closed = set(gaps[:excess])
    kept: list[Interval] = []
    for i, (start, end) in enumerate(intervals):
        if i in closed:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((start, end))
    return kept


def exposure(
    life: Interval, first_token: int | None, own_steps: Iterable[Interval], stall: Iterable[Interval]
) -> tuple[Exposure, Exposure]:
    """The part of a request's `life` that lay in the `stall`, before and after its first token.

    What fell into the request's own steps is ``in_batch``, the rest ``queued``. Without a first token all of it
    is before. The intervals may come in any order and may overlap; a nanosecond is counted once.
    """
    start, end = life
    split = end if first_token is None else min(max(first_token, start), end)
    stalled = union(stall)
    in_batch = intersection(stalled, union(own_steps))

    def part(begin: int, stop: int) -> Exposure:
        own = overlap(in_batch, begin, stop)
        return Exposure(in_batch_ns=own, queued_ns=overlap(stalled, begin, stop) - own)

    return part(start, split), part(split, end)
