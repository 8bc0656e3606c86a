"""One iteration of an engine: whose tokens it works on, from when to when, and what stalled meanwhile.

On one host the clock says what lay in what. Where steps overlap (pipeline parallelism, asynchronous scheduling) their
ids do: a stall that happened in another step is not in this one. Between hosts, whose clocks differ, stalls travel with
the results: ``stalls()`` on the worker, ``charge()`` where the step is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tritonprobe.model import FallbackReason, FellBack
from tritonprobe.requests.cost import executed
from tritonprobe.requests.engine import tag_of
from tritonprobe.requests.exposure import Interval, coalesce, difference, intersection, union
from tritonprobe.requests.request import LiveRequest
from tritonprobe.requests.threads import this_thread
from tritonprobe.tracing import current_trace

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests

MAX_WINDOWS = 512
"""Step windows kept for one request until they are boiled down to the stalls inside them."""
MAX_CHARGED = 1024
"""Stalls taken from one worker for one step."""


class Running:
    """What is known of a step in progress: its id, the time spent in fallbacks, and whether another one overlaps it.

    ``shared``: some step with requests runs beside it, be it the same step on another rank.
    """

    __slots__ = ("fallback_ns", "id", "overlaps", "shared")

    def __init__(self, id: str | int | None) -> None:  # noqa: A002  # what users call it
        self.id = id
        self.fallback_ns = 0
        self.overlaps = False
        self.shared = False


class Step:
    """One iteration of an engine. Made by `Requests.step`; a context manager around it in the thread that runs it.

    Engines with several steps in flight call `begin` and `end`, from whichever threads. The thread that begins a step
    is a serving thread from then on.
    """

    __slots__ = ("_owner", "_running", "_thread", "id", "others", "requests", "start_ns")

    def __init__(
        self,
        owner: Requests,
        requests: list[LiveRequest],
        others: list[str],
        id: str | int | None = None,  # noqa: A002
    ) -> None:
        self.requests = requests
        self.others = others  # ids of requests that another process holds
        self.id = id
        self.start_ns = 0
        self._thread = 0
        self._running = Running(id)
        self._owner = owner

    def begin(self) -> Step:
        """The step begins now, in this thread."""
        owner = self._owner
        self._thread = thread = this_thread()
        if thread not in owner._stalls.serving:
            owner._stalls.serve(thread)
        under_way = owner._running.get(thread)
        if under_way is None:
            owner._running[thread] = [self._running]
        else:
            under_way.append(self._running)
        self.start_ns = owner._clock()
        if owner._steps and (self.requests or self.others):
            for _, requests, other in list(owner._steps.values()):
                if requests:
                    other.shared = self._running.shared = True
                    if other.id is None or other.id != self.id:  # else it is this step, on another rank
                        other.overlaps = self._running.overlaps = True
        owner._steps[id(self)] = (self.start_ns, self.requests, self._running)
        return self

    def end(self) -> None:
        """The step is over, and its results are here. Twice is once."""
        owner = self._owner
        if self._thread == 0:
            return
        start, end = self.start_ns, owner._clock()
        running = self._running
        if not running.shared and owner._is_calm(start, end):
            took = end - start
            for request in self.requests:
                request._executed += took
                if request._first_step_ns is None:
                    request._first_step_ns = start
        else:
            self._remember((start, end))
        if running.fallback_ns:
            for request in self.requests:
                request._fallback_ns += running.fallback_ns
        self._leave()

    def _remember(self, window: Interval) -> None:
        """Something stalled, or ran beside this step: the window is kept until what it means is known."""
        owner, running = self._owner, self._running
        windows: Sequence[Interval] = (window,)
        if owner._engine is not None or (running.overlaps and self.id is not None):
            windows = _own_part(owner, self, window)
        for request in self.requests:
            request._windows.extend(windows)
            if running.overlaps:
                request._pipelined = True
            if len(request._windows) > MAX_WINDOWS:
                _boil_down(owner, request)

    def stalls(self) -> list[tuple[int, int]]:
        """What stalled here since the step began, as (nanoseconds since its beginning, length): plain, to be sent."""
        found = self._owner._stalls.between(self.start_ns, self._owner._clock())
        return [(start - self.start_ns, end - start) for start, end in coalesce(found, MAX_CHARGED)]

    def charge(self, stalls: Sequence[tuple[int, int]]) -> None:
        """Counts what a worker on another host told by `stalls`, before `end`. Beyond this step's time it is cut."""
        self._owner._charge(self, stalls)

    def _leave(self) -> None:
        owner = self._owner
        under_way = owner._running.get(self._thread)
        if under_way is not None and self._running in under_way:
            under_way.remove(self._running)
            if not under_way:
                owner._running.pop(self._thread, None)
        # Last: a request that finishes meanwhile finds the step here, or its window, or both.
        owner._steps.pop(id(self), None)
        self._thread = 0

    def __enter__(self) -> Step:
        return self.begin()

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end()

    def __del__(self) -> None:
        # An interrupt inside `begin` or `end`, or an engine thread that died, leaves a step that nobody ends.
        # Not by `_leave`: whatever interrupts a finalizer inside a call of ours would be told on standard error.
        owner = getattr(self, "_owner", None)
        if owner is not None and self._thread:
            owner._steps.pop(id(self), None)
            under_way = owner._running.get(self._thread, ())
            if self._running in under_way:
                under_way.remove(self._running)


class Fallback:
    """A block in which a step's thread runs an op's fallback. Stalls inside it stay stalls; one inside is a part.

    It becomes an event only while a traced request is live.
    """

    __slots__ = ("_before", "_bucket", "_op", "_owner", "_reason", "_running", "_start", "_trace", "_unix")

    def __init__(self, owner: Requests, op: str, bucket: str, reason: FallbackReason) -> None:
        self._owner = owner
        self._op = op
        self._bucket = bucket
        self._reason = reason
        under_way = owner._running.get(this_thread())
        self._running = under_way[-1] if under_way else None

    def __enter__(self) -> None:
        owner = self._owner
        self._before = self._running.fallback_ns if self._running is not None else 0
        self._unix = owner._unix_clock() if owner._traced else None
        self._trace = current_trace() if owner._traced else None
        self._start = owner._clock()

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        owner = self._owner
        start, end = self._start, owner._clock()
        if self._running is not None:
            stalled = sum(stop - begin for begin, stop in owner._stalls.between(start, end)) if owner._stalls.any else 0
            self._running.fallback_ns = self._before + end - start - stalled
        if self._unix is not None:
            owner._bus.publish(FellBack(self._op, self._bucket, self._reason, start, end, self._unix, self._trace))


def _own_part(owner: Requests, step: Step, window: Interval) -> Sequence[Interval]:
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
        if owner._engine is not None:
            elsewhere = [*step.others, *(request.id for request in step.requests if not request.record)]
            stalled = union((start, end) for start, end, _ in stalls)
            owner._engine.was_in(elsewhere, intersection(windows, stalled))
        return windows
    except Exception as error:
        owner._misuse("step", f"a step's stalls are not told apart: {type(error).__name__}: {error}")
        return (window,)


def _tagged_open(owner: Requests, now: int) -> list[tuple[int, int, int]]:
    found = [
        (start, now, tag_of(owner._step_of(thread))) for start, thread in owner._own_open() if owner.is_serving(thread)
    ]
    if owner._engine is not None:
        found += [(start, now, tag) for start, tag in owner._engine.open_stalls()]
    return found


def _boil_down(owner: Requests, request: LiveRequest) -> None:
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
