"""One iteration of an engine: whose tokens it works on, from when to when, and what stalled meanwhile.

On one host the clock says what lay in what. Where steps overlap (pipeline parallelism, asynchronous scheduling) their
ids do: a stall that happened in another step is not in this one. Between hosts, whose clocks differ, stalls travel with
the results: ``stalls()`` on the worker, ``charge()`` where the step is known.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tritonprobe.requests import windows as windows_of
from tritonprobe.requests.batches import NOBODY, Batch
from tritonprobe.requests.exposure import Interval, coalesce
from tritonprobe.requests.request import LiveRequest
from tritonprobe.requests.threads import Life, this_life

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests


LATER = sys.maxsize
"""When a step begins whose clock is being read."""


class Running:
    """What is known of a step in progress: its id, the time spent in fallbacks, and whether another one overlaps it.

    ``shared``: some step with requests runs beside it, be it the same step on another rank. ``over``: a thread ends it,
    or nobody will: it is ``given_up``. ``counted``: and its time is in its requests' own figures. These two change
    under the owner's lock. ``start``: when it began; `LATER` until it has.
    """

    __slots__ = ("counted", "fallback_ns", "given_up", "id", "life", "over", "overlaps", "shared", "start", "thread")

    life: weakref.ref[Life]  # of the thread that begins it

    def __init__(self, id: str | int | None) -> None:  # noqa: A002  # what users call it
        self.id = id
        self.thread = 0
        self.start = LATER
        self.fallback_ns = 0
        self.overlaps = False
        self.shared = False
        self.over = False
        self.given_up = False
        self.counted = False


class Step:
    """One iteration of an engine. Made by `Requests.step`; a context manager around it in the thread that runs it.

    Engines with several steps in flight call `begin` and `end`, from whichever threads. The thread that begins a step
    is a serving thread from then on.
    """

    __slots__ = ("_batch", "_owner", "_running", "_thread", "id", "start_ns")

    def __init__(self, owner: Requests, batch: Batch, id: str | int | None = None) -> None:  # noqa: A002
        self._batch = batch
        self.id = id
        self.start_ns = 0
        self._thread = 0
        self._running = Running(id)
        self._owner = owner

    @property
    def requests(self) -> list[LiveRequest]:
        """Those of this process that the step works on; none once it is over."""
        return self._batch.requests

    @property
    def others(self) -> list[str]:
        """The ids of those that another process holds."""
        return self._batch.others

    def begin(self) -> Step:
        """The step begins now, in this thread. Once: ``with step(batch).begin():`` has begun it before its block."""
        owner, running = self._owner, self._running
        if self._thread or running.over:
            if running.over:
                owner._misuse("begun_again", "a step that was over was begun again, which counts for nothing")
            return self
        thread, running.life = this_life()
        self._thread = running.thread = thread
        if thread not in owner._stalls.serving:
            owner._stalls.serve(thread)
        under_way = owner._running.get(thread)
        if under_way is None:
            owner._running[thread] = [running]
        else:
            under_way.append(running)
        # There before its clock is read, and seen after: of two steps that overlap one sees the other, whatever runs in
        # between. No lock, which would cost more than all of this.
        owner._steps[id(self)] = (self._batch, running)
        self.start_ns = running.start = owner._clock()
        if len(owner._steps) > 1:
            self._meet(LATER)
        return self

    def _meet(self, end: int) -> None:
        """Steps are under way beside this one, which ends no sooner than at `end`: each is told of the other."""
        owner, running = self._owner, self._running
        if not self._batch.given:
            return
        for key, (batch, other) in list(owner._steps.items()):
            if other is running or end <= other.start < LATER:
                continue
            if other.life() is None:
                self._give_up(key, other)
            elif batch.given:
                other.shared = running.shared = True
                if other.id is None or other.id != self.id:  # else it is this step, on another rank
                    other.overlaps = running.overlaps = True

    def _give_up(self, key: int, other: Running) -> None:
        """The thread that began another step has ended, and left it: it runs beside no other one any more."""
        owner = self._owner
        found = owner._steps.get(key)
        if found is None or found[1] is not other:  # it was ended meanwhile, the last thing that its thread did
            return
        other.over = other.given_up = True  # also if another thread ends it yet: what ran since knows nothing of it
        owner._steps.pop(key, None)
        owner._running.pop(other.thread, None)
        owner._unended.append(None)

    def end(self) -> None:
        """The step is over, and its results are here. Twice is once, be it by two threads at the same time."""
        owner = self._owner
        if self._thread == 0:
            return
        start, end = self.start_ns, owner._clock()
        running = self._running
        is_calm = owner._is_calm(start, end)
        with owner._lock:
            if running.over:
                return
            running.over = True  # first: after an interrupt in between it may count too little, never twice
            if len(owner._steps) > 1:  # some began since, and may not have looked about yet
                self._meet(end)
            if is_calm and running.shared:
                for request in owner._batches.beside(self._batch, start, end, running.overlaps):
                    self._keep(request, ((start, end),))
            elif is_calm and self._batch.given:
                running.counted = True
                owner._batches.turn(self._batch, start, end)
        if not is_calm:
            self._remember((start, end))
        if running.fallback_ns:
            for request in self.requests:
                request._fallback_ns += running.fallback_ns
        if owner._traced and self._batch.traces:
            owner._traced_steps.append((start, end, self._thread, self._batch.traces))
        self._leave()

    def _remember(self, window: Interval) -> None:
        """Something stalled, or ran beside this step: the window is kept until what it means is known."""
        owner, running = self._owner, self._running
        windows: Sequence[Interval] = (window,)
        if owner._engine is not None or (running.overlaps and self.id is not None):
            windows = windows_of.own_part(owner, self, window)
        for request in self.requests:
            if running.overlaps:
                request._pipelined = True
            self._keep(request, windows)

    def _keep(self, request: LiveRequest, windows: Sequence[Interval]) -> None:
        request._windows.extend(windows)
        if len(request._windows) > windows_of.MAX_WINDOWS:
            windows_of.boil_down(self._owner, request)

    def stalls(self) -> list[tuple[int, int]]:
        """What stalled here since the step began, as (nanoseconds since its beginning, length): plain, to be sent."""
        found = self._owner._stalls.between(self.start_ns, self._owner._clock())
        return [(start - self.start_ns, end - start) for start, end in coalesce(found, windows_of.MAX_CHARGED)]

    def charge(self, stalls: Sequence[tuple[int, int]]) -> None:
        """Counts what a worker on another host told by `stalls`, before `end`. Beyond this step's time it is cut."""
        windows_of.charge(self._owner, self, stalls)

    def _leave(self) -> None:
        owner = self._owner
        running, under_way = self._running, owner._running.get(self._thread)
        if under_way is not None:
            if len(under_way) == 1 and under_way[0] is running:
                owner._running.pop(self._thread, None)
            elif running in under_way:
                under_way.remove(running)
        # Last: a request that finishes meanwhile finds the step here, or its window, or both.
        owner._steps.pop(id(self), None)
        self._thread = 0
        self._batch = NOBODY  # only what nobody holds can become the next step's

    __enter__ = begin

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end()

    def __del__(self) -> None:
        # An interrupt inside `begin` or `end`, or an engine thread that died, leaves a step that nobody ends.
        # Not by `_leave`: whatever interrupts a finalizer inside a call of ours would be told on standard error.
        owner = getattr(self, "_owner", None)
        if owner is not None and self._thread and not self._running.given_up:
            owner._unended.append(None)
            owner._steps.pop(id(self), None)
            under_way = owner._running.get(self._thread, ())
            if self._running in under_way:
                under_way.remove(self._running)
