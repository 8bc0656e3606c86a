"""One request as its server holds it, from its arrival to its end. What becomes of it is its owner's business."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tritonprobe.requests.exposure import Interval
from tritonprobe.tracing import Trace

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests


class LiveRequest:
    """One request from its arrival to its end. Made by `Requests.request`; also a context manager.

    May be held and used by any thread of the process. Another process of the same engine makes a handle of its own,
    with the same `id` and ``record=False``.
    """

    __slots__ = (
        "__weakref__",
        "_elsewhere",
        "_end_ns",
        "_executed",
        "_executed_to",
        "_fallback_ns",
        "_first_ns",
        "_first_step_ns",
        "_joined",
        "_key",
        "_owner",
        "_pipelined",
        "_stalled",
        "_tokens",
        "_told",
        "_windows",
        "id",
        "model",
        "record",
        "start_ns",
        "trace",
        "unix_ns",
    )  # fmt: skip

    def __init__(
        self,
        owner: Requests,
        *,
        key: int,
        name: str,
        model: str,
        start_ns: int,
        unix_ns: int,
        trace: Trace | None,
        record: bool,
    ) -> None:
        self.id = name
        self.model = model
        self.start_ns = start_ns
        self.unix_ns = unix_ns
        self.trace = trace
        self.record = record
        self._key = key
        self._tokens = 0
        self._first_ns: int | None = None
        self._end_ns: int | None = None
        self._windows: list[Interval] = []  # its recent steps
        self._stalled: list[Interval] = []  # what lay in a stall of the steps before those
        self._first_step_ns: int | None = None  # of the steps before those
        self._executed = 0  # what lay outside
        self._executed_to = 0  # and up to when that was counted
        self._joined: int | None = None  # where the meter of calm steps stood, see `batches`
        self._fallback_ns = 0
        self._pipelined = False
        self._told: list[Interval] = []  # steps in a stall, told by a peer
        self._elsewhere: tuple[int, int, int] | None = None  # first step, executed, in fallbacks: told by a peer
        self._owner = owner  # last: see __del__

    def token(self, n: int = 1) -> None:
        """Counts `n` output tokens; the first one ends the time to first token."""
        if not isinstance(n, int) or n < 0:
            self._owner._misuse("token_count", f"token({n.__class__.__name__}) takes a whole number from 0 up")
            return
        with self._owner._lock:
            if self._end_ns is None:
                if n and self._first_ns is None:
                    self._first_ns = self._owner._clock()
                self._tokens += n
                return
        self._owner._misuse("late_token", f"request {self.id!r} got a token after it had finished")

    def finish(self, error: BaseException | str | None = None) -> None:
        """Ends the request, with the `error` (or its type's name) that ended it if there was one."""
        self._owner._finish(self, error)

    def __enter__(self) -> LiveRequest:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._end_ns is None:  # finished by hand inside the block: nothing is left to do
            self.finish(error)

    def __del__(self) -> None:
        # The collector may run this inside any of our locks, hence nothing but an append, which takes none.
        owner = getattr(self, "_owner", None)  # an interrupt may have left the object half made
        if owner is not None and self._key in owner._live:
            owner._abandoned.append(self._key)
