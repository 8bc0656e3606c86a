"""Live requests and engine steps: TTFT, TPOT, and the stall each request stood behind.

May know the bus and the model; knows nothing of Triton or of metrics. A request is held by several threads (the
server's, the engine's), so all of this is safe from any of them. Misuse (a token after the end, a request never
finished) is counted, logged once a kind, and otherwise ignored: it never raises into the served program.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from tritonprobe.bus import Bus
from tritonprobe.forks import tell_in_child
from tritonprobe.model import RequestCost
from tritonprobe.requests.exposure import Interval, coalesce, exposure, intersection, union
from tritonprobe.requests.stalls import OpenStalls, Stalls
from tritonprobe.requests.threads import this_thread
from tritonprobe.tracing import Trace, current_trace, parse_traceparent

log = logging.getLogger("tritonprobe")

MAX_LIVE = 100_000
"""Requests alive at one time. Beyond it the oldest is given up: what it stood behind is no longer known."""
MAX_WINDOWS = 512
"""Step windows kept for one request until they are boiled down to the stalls inside them."""
MAX_TEXT = 128
"""Characters kept of an id, a model's name or an error's."""


class LiveRequest:
    """One request from its arrival to its end. Made by `Requests.request`; also a context manager."""

    __slots__ = (
        "__weakref__", "_end_ns", "_first_ns", "_key", "_owner", "_stalled", "_tokens", "_windows",
        "id", "model", "start_ns", "trace", "unix_ns",
    )  # fmt: skip

    def __init__(
        self, owner: Requests, *, key: int, name: str, model: str, start_ns: int, unix_ns: int, trace: Trace | None
    ) -> None:
        self.id = name
        self.model = model
        self.start_ns = start_ns
        self.unix_ns = unix_ns
        self.trace = trace
        self._key = key
        self._tokens = 0
        self._first_ns: int | None = None
        self._end_ns: int | None = None
        self._windows: list[Interval] = []  # its recent steps
        self._stalled: list[Interval] = []  # what lay in a stall of the steps before those
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


class Step:
    """One iteration of an engine: a context manager around it in the thread that runs it. Made by `Requests.step`."""

    __slots__ = ("_owner", "requests", "start_ns")

    def __init__(self, owner: Requests, requests: list[LiveRequest]) -> None:
        self.requests = requests
        self.start_ns = 0
        self._owner = owner

    def __enter__(self) -> None:
        owner = self._owner
        owner._stalls.serve(this_thread())
        self.start_ns = owner._clock()
        owner._steps[id(self)] = (self.start_ns, self.requests)

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        owner = self._owner
        window = (self.start_ns, owner._clock())
        for request in self.requests:
            windows = request._windows
            windows.append(window)
            if len(windows) > MAX_WINDOWS:
                owner._boil_down(request)
        # Last: a request that finishes meanwhile finds the step here, or its window, or both.
        owner._steps.pop(id(self), None)

    def __del__(self) -> None:
        # An interrupt inside `__enter__` or `__exit__` leaves a step that nobody ends.
        owner = getattr(self, "_owner", None)
        if owner is not None:
            owner._steps.pop(id(self), None)


class Requests:
    """The live requests of one runtime. Each that finishes becomes a `RequestCost` on the bus."""

    def __init__(
        self,
        bus: Bus,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        unix_clock: Callable[[], int] = time.time_ns,
        on_error: Callable[[str], None] | None = None,
        open_stalls: OpenStalls = tuple,
    ) -> None:
        """``on_error("requests")`` is told of each misuse and fault; `open_stalls` lists cold calls in progress."""
        self._bus = bus
        self._clock = clock
        self._unix_clock = unix_clock
        self._on_error = on_error
        self._stalls = Stalls(open_stalls)
        # One lock for all requests, held briefly. Reentrant: a signal's handler may run inside, and have a request.
        self._lock = threading.RLock()
        self._keys = itertools.count(1)
        self._live: dict[int, int] = {}  # key -> start, the oldest first
        self._steps: dict[int, tuple[int, list[LiveRequest]]] = {}  # id of each step in progress -> start, its requests
        self._abandoned: deque[int] = deque(maxlen=MAX_LIVE)
        self._said: set[str] = set()
        tell_in_child(self)

    def request(
        self,
        id: str | None = None,  # noqa: A002  # what users call it
        model: str = "",
        traceparent: str | None = None,
    ) -> LiveRequest:
        """A new request, whose clock starts now. Without an `id` it gets a number.

        Its trace is that of the header `traceparent`, without one that of the current OpenTelemetry span; neither if
        it is not sampled.
        """
        key = next(self._keys)
        try:
            start = self._enlist(key)
            return LiveRequest(
                self,
                key=key,
                name=f"request-{key}" if id is None else str(id)[:MAX_TEXT],
                model=str(model)[:MAX_TEXT],
                start_ns=start,
                unix_ns=self._unix_clock(),
                trace=current_trace() if traceparent is None else self._sent(traceparent),
            )
        except BaseException:  # an interrupt: nobody will finish it
            self._live.pop(key, None)
            raise

    def _enlist(self, key: int) -> int:
        """Begins the life of the request `key`, and gives up those that nobody will finish. Returns its start."""
        given_up = 0
        with self._lock:
            with suppress(IndexError):  # not `while self._abandoned`: a signal's handler may take the last one
                while True:
                    given_up += self._live.pop(self._abandoned.popleft(), None) is not None
            # Inside the lock, and its place taken before the clock is read, so that the oldest stays first.
            self._live[key] = 0
            start = self._live[key] = self._clock()
            crowded = len(self._live) > MAX_LIVE
            if crowded:
                self._live.pop(next(iter(self._live)), None)
        for _ in range(given_up):
            self._misuse("abandoned", "a request was dropped without finish(); it is in no figure")
        if crowded:
            self._misuse("crowded", f"more than {MAX_LIVE} requests are alive; the oldest is in no figure")
        return start

    def _sent(self, traceparent: str) -> Trace | None:
        try:
            return parse_traceparent(traceparent)
        except ValueError as error:
            self._misuse("traceparent", f"a request's trace is {error}; the request has the current span's, if any")
            return current_trace()

    def step(self, batch: Iterable[LiveRequest | tuple[LiveRequest, int]]) -> Step:
        """One engine iteration over `batch`; the thread that runs it is a serving thread from now on.

        A number of tokens beside a request may be given; no figure uses it yet (`LiveRequest.token` counts the output).
        """
        try:
            requests = [item[0] if item.__class__ is tuple else item for item in batch]
        except Exception as error:
            self._misuse("batch", f"a step's batch could not be read: {type(error).__name__}: {error}")
            return Step(self, [])
        known = [request for request in requests if isinstance(request, LiveRequest)]
        if len(known) < len(requests):
            strangers = sorted({type(r).__name__ for r in requests if not isinstance(r, LiveRequest)})
            self._misuse("batch", f"a step's batch holds requests, not {', '.join(strangers)}")
        return Step(self, known)

    def stall(self, start_ns: int, end_ns: int, thread: int) -> None:
        """Takes note of a finished cold call of `thread`, as `this_thread` numbers them."""
        with self._lock:
            oldest = next(iter(self._live.values()), None)
        if oldest is not None:
            self._stalls.add(start_ns, end_ns, thread, needed_from=oldest)

    def is_serving(self, thread: int) -> bool:
        """Whether the cold calls of `thread` count: it has run a step, or no thread has."""
        return self._stalls.counts(thread)

    def _finish(self, request: LiveRequest, error: BaseException | str | None) -> None:
        with self._lock:
            end = self._clock()
            again = request._end_ns is not None
            if not again:
                request._end_ns = end
        if again:
            self._misuse("finished_twice", f"request {request.id!r} was finished twice; the first time counts")
            return
        try:
            cost = self._cost(request, end, error)
            # Only now: what it stood behind had to be kept until here.
            known = self._live.pop(request._key, None) is not None
            if known:
                self._bus.publish(cost)
        except Exception as fault:
            self._misuse("finish", f"request {request.id!r} is in no figure: {type(fault).__name__}: {fault}")

    def _cost(self, request: LiveRequest, end: int, error: BaseException | str | None) -> RequestCost:
        start = request.start_ns
        steps = list(self._steps.values())  # before the windows: see `Step.__exit__`
        now_running = [began for began, requests in steps if any(r is request for r in requests)]
        with self._lock:
            own = [*request._stalled, *request._windows, *((began, end) for began in now_running)]
        before, after = exposure((start, end), request._first_ns, own, self._stalls.between(start, end))
        name = type(error).__name__ if isinstance(error, BaseException) else error
        return RequestCost(
            id=request.id,
            model=request.model,
            start_ns=start,
            first_token_ns=request._first_ns,
            end_ns=end,
            unix_ns=request.unix_ns,
            tokens=request._tokens,
            before=before,
            after=after,
            error=None if name is None else str(name)[:MAX_TEXT],
            trace=request.trace,
        )

    def _boil_down(self, request: LiveRequest) -> None:
        """Replaces the windows of many steps by the stalls inside them: mostly nothing, and all that exposure needs.

        If even these are too many, the narrowest gaps are closed: ``in_batch`` may then take from ``queued``, while the
        exposure as a whole stays what it is.
        """
        with self._lock:
            windows = request._windows[:]  # others may append meanwhile; those stay
            del request._windows[: len(windows)]
            try:
                steps = union(windows)
                if steps:
                    stall = self._stalls.between(steps[0][0], steps[-1][1], everyone=True)
                    stalled = union([*request._stalled, *intersection(steps, stall)])
                    request._stalled = coalesce(stalled, MAX_WINDOWS // 2)
                return
            except Exception as fault:
                why = f"{type(fault).__name__}: {fault}"
        self._misuse("step", f"steps are missing from a request's figures: {why}")

    def after_fork(self) -> None:
        """For a forked child: its parent's requests and steps are the parent's, and the lock may be held by nobody."""
        self._lock = threading.RLock()
        self._live.clear()
        self._steps.clear()
        self._abandoned.clear()
        self._stalls.after_fork()

    def _misuse(self, kind: str, message: str) -> None:
        """Counts a misuse, and says so the first time it is seen."""
        if self._on_error is not None:
            self._on_error("requests")
        if kind not in self._said:
            self._said.add(kind)
            log.warning("tritonprobe: %s (said once, counted in errors_total)", message)
