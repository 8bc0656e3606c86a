"""The time that a step's thread spends in an op's fallback: a part of the lives of the step's requests."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tritonprobe.model import FallbackReason, FellBack
from tritonprobe.requests.threads import this_thread
from tritonprobe.tracing import current_trace

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests


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
