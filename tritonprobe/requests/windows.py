"""What a step's time means where something stalled: whose stall it was, and what a request has to remember of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonprobe.requests.cost import executed
from tritonprobe.requests.engine import tag_of
from tritonprobe.requests.exposure import Interval, coalesce, difference, intersection, union
from tritonprobe.requests.request import LiveRequest
from tritonprobe.requests.stalls import COUNTED

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests
    from tritonprobe.requests.steps import Step

MAX_WINDOWS = 512
"""Step windows kept for one request until they are boiled down to the stalls inside them."""
MAX_CHARGED = 1024
"""Stalls taken from one worker for one step."""


def own_part(owner: Requests, step: Step, window: Interval) -> Sequence[Interval]:
    """The `window` of a step without the stalls of other steps; those who hold its requests are told."""
    try:
        in_progress = _tagged_open(owner, window[1])  # first: see OpenStalls
        owner._hear()
        stalls = [*owner._stalls.tagged(*window), *in_progress]
        if not stalls:
            return (window,)
        mine = tag_of(step.id)
        windows = [window]
        if mine:
            foreign = union((start, end) for start, end, tag in stalls if tag not in (0, mine))
            own = union((start, end) for start, end, tag in stalls if tag in (0, mine))
            windows = difference(windows, difference(foreign, own))
        engine = owner._engine
        if engine is not None:
            elsewhere = [*step.others, *(request.id for request in step.requests if not request.record)]
            stalled = union((start, end) for start, end, _ in stalls)
            engine.was_in(elsewhere, intersection(windows, stalled))
        return windows
    except Exception as error:
        owner._misuse("step", f"a step's stalls are not told apart: {type(error).__name__}: {error}")
        return (window,)


def _tagged_open(owner: Requests, now: int) -> list[tuple[int, int, int]]:
    found = [
        (start, now, tag_of(owner._step_of(thread))) for start, thread in owner._own_open() if owner.is_serving(thread)
    ]
    engine = owner._engine
    if engine is not None:
        found += [(start, now, tag) for start, tag in engine.open_stalls()]
    return found


def boil_down(owner: Requests, request: LiveRequest) -> None:
    """Replaces the windows of many steps by the stalls inside them: mostly nothing, and all that exposure needs.

    If even these are too many, the narrowest gaps are closed: ``in_batch`` may then take from ``queued``, while the
    exposure as a whole stays what it is.
    """
    with owner._lock:
        windows = request._windows[:]  # others may append meanwhile; those stay
        del request._windows[: len(windows)]
        try:
            steps = union(windows)
            if steps:
                counted = owner._stalls.between(steps[0][0], steps[-1][1])
                request._first_step_ns, request._executed = executed(request, steps, counted)
                request._executed_to = max(request._executed_to, steps[-1][1])
                stall = owner._stalls.between(steps[0][0], steps[-1][1], everyone=True)
                stalled = union([*request._stalled, *intersection(steps, stall)])
                request._stalled = coalesce(stalled, MAX_WINDOWS // 2)
            return
        except Exception as fault:
            why = f"{type(fault).__name__}: {fault}"
    owner._misuse("step", f"steps are missing from a request's figures: {why}")


def charge(owner: Requests, step: Step, stalls: Sequence[tuple[int, int]]) -> None:
    """Stalls that a worker of another host told of, by their distance from the beginning of `step`."""
    try:
        now, oldest = owner._clock(), owner._oldest()
        if oldest is None or id(step) not in owner._steps:
            raise ValueError("the step is not in progress")
        for after, length in stalls[:MAX_CHARGED]:
            if after < 0 or length < 0:
                raise ValueError(f"({after}, {length}) is no time since the step's beginning and a length")
            start, end = step.start_ns + after, step.start_ns + after + length
            if start < now:
                owner._stalls.add(start, min(end, now), COUNTED, oldest, tag_of(step.id))
    except Exception as error:
        owner._misuse("charge", f"a worker's stalls are not counted: {type(error).__name__}: {error}")
