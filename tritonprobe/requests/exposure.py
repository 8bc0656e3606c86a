"""How much of a request's life a stall covered. Pure: arithmetic on (start, end) in nanoseconds, half open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonprobe.model import Exposure, Parts

Interval = tuple[int, int]
Phases = tuple[tuple[str, int], ...]
Call = tuple[int, int, Phases]
"""A cold call: its start, its end and its phases."""


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


def difference(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """The time in `a` that is not in `b`; both as `union` returns them."""
    left: list[Interval] = []
    for start, end in a:
        at = start
        for begin, stop in b:
            if stop <= at:
                continue
            if begin >= end:
                break
            if begin > at:
                left.append((at, begin))
            at = max(at, stop)
        if at < end:
            left.append((at, end))
    return left


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
    life: Interval,
    first_token: int | None,
    own_steps: Iterable[Interval],
    stall: Iterable[Interval],
    calls: Iterable[Call] = (),
) -> tuple[Exposure, Exposure]:
    """The part of a request's `life` that lay in the `stall`, before and after its first token.

    What fell into the request's own steps is ``in_batch``, the rest ``queued``. Without a first token all of it
    is before. The intervals may come in any order and may overlap; a nanosecond is counted once. `calls` are those of
    the stall whose phases are known.
    """
    start, end = life
    split = end if first_token is None else min(max(first_token, start), end)
    stalled = union(stall)
    in_batch = intersection(stalled, union(own_steps))
    calls = sorted(calls)

    def part(begin: int, stop: int) -> Exposure:
        own = overlap(in_batch, begin, stop)
        return Exposure(own, overlap(stalled, begin, stop) - own, by_phase((begin, stop), calls))

    return part(start, split), part(split, end)


def by_phase(window: Interval, calls: Iterable[Call]) -> Phases:
    """The time of sorted `calls` inside the `window`, by their phases. What two calls share counts for the earlier.

    A call that lies in the window in part gives that share of each of its phases.
    """
    found: dict[str, int] = {}
    at = window[0]
    for start, end, phases in calls:
        seen = min(end, window[1]) - max(start, at)
        if seen <= 0:
            continue
        at = max(at, min(end, window[1]))
        for name, ns in phases:
            found[name] = found.get(name, 0) + (ns if seen == end - start else ns * seen // (end - start))
    return tuple((name, ns) for name, ns in found.items() if ns)


def parts(life: Interval, first_step: int, executed: int, fallback: int, stall: Sequence[Interval]) -> Parts:
    """The `life` in parts. `executed` is the time of the request's steps outside the `stall`, `fallback` a part of it.

    `stall` as `union` returns it.
    """
    start, end = life
    began = min(max(first_step, start), end)
    queue = began - start - overlap(stall, start, began)
    exposed = overlap(stall, start, end)
    executed = min(executed, end - start - queue - exposed)  # the clocks of two processes are read one after the other
    fallback = min(fallback, executed)
    return Parts(
        queue_ns=queue,
        execution_ns=executed - fallback,
        exposure_ns=exposed,
        fallback_ns=fallback,
        remainder_ns=end - start - queue - exposed - executed,
    )
