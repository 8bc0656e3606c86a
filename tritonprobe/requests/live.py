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
from pathlib import Path

from tritonprobe.bus import Bus
from tritonprobe.forks import tell_in_child
from tritonprobe.model import FallbackReason
from tritonprobe.requests.batches import Batch, batches
from tritonprobe.requests.cost import cost_of
from tritonprobe.requests.engine import Engine, tag_of
from tritonprobe.requests.exposure import Call, Phases
from tritonprobe.requests.fallbacks import Fallback
from tritonprobe.requests.request import LiveRequest
from tritonprobe.requests.stalls import COUNTED, OpenStalls, Stalls
from tritonprobe.requests.steps import Running, Step
from tritonprobe.seen import TracedStep
from tritonprobe.tracing import Trace, current_trace, parse_traceparent

log = logging.getLogger("tritonprobe")

MAX_LIVE = 100_000
"""Requests alive at one time. Beyond it the oldest is given up: what it stood behind is no longer known."""
MAX_TEXT = 128
"""Characters kept of an id, a model's name or an error's."""
MAX_TRACED_STEPS = 4096
"""Steps of traced requests that are remembered for GPU windows."""
MAX_CALLS = 4096
"""Cold calls whose phases are remembered; what a request stood behind before them is in no phase."""


class Requests:
    """The live requests of one runtime. Each that finishes becomes a `RequestCost` on the bus."""

    def __init__(
        self,
        bus: Bus,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        unix_clock: Callable[[], int] = time.time_ns,
        on_error: Callable[[str], None] | None = None,
        on_client_error: Callable[[str], None] | None = None,
        open_stalls: OpenStalls = tuple,
    ) -> None:
        """``on_error("requests")`` is told of each misuse and fault, ``on_client_error("traceparent")`` of what clients
        sent and nobody can read; `open_stalls` lists cold calls in progress.
        """
        self._bus = bus
        self._clock = clock
        self._unix_clock = unix_clock
        self._on_error = on_error
        self._on_client_error = on_client_error
        self._own_open = open_stalls
        self._stalls = Stalls(self._open)
        self._calls: deque[Call] = deque(maxlen=MAX_CALLS)
        # One lock for all requests, held briefly. Reentrant: a signal's handler may run inside, and have a request.
        self._lock = threading.RLock()
        self._keys = itertools.count(1)
        self._live: dict[int, int] = {}  # key -> start, the oldest first
        self._traced: dict[int, tuple[int, Trace]] = {}  # key -> start and trace of those that are sampled
        # id of each step in progress -> its batch, and what else is known of it
        self._steps: dict[int, tuple[Batch, Running]] = {}
        self._running: dict[int, list[Running]] = {}  # thread -> the steps that it is in
        self._batches = batches(self._misuse)
        self._traced_steps: deque[TracedStep] = deque(maxlen=MAX_TRACED_STEPS)
        self._engine: Engine | None = None
        self._abandoned: deque[int] = deque(maxlen=MAX_LIVE)
        self._unended: deque[None] = deque(maxlen=MAX_LIVE)  # steps that nobody will end, one item each
        self._said: set[str] = set()
        tell_in_child(self)

    def request(
        self,
        id: str | None = None,  # noqa: A002  # what users call it
        model: str = "",
        traceparent: str | None = None,
        *,
        record: bool = True,
    ) -> LiveRequest:
        """A new request, whose clock starts now. Without an `id` it gets a number.

        Its trace is that of the header `traceparent`, without one that of the current OpenTelemetry span; neither if
        it is not sampled. Without `record` it becomes no `RequestCost`: another process of the engine holds the request
        of this id, and this handle says who is in the steps here.
        """
        key = next(self._keys)
        try:
            start = self._enlist(key)
            trace = current_trace() if traceparent is None else self._sent(traceparent)
            request = LiveRequest(
                self,
                key=key,
                name=f"request-{key}" if id is None else str(id)[:MAX_TEXT],
                model=str(model)[:MAX_TEXT],
                start_ns=start,
                unix_ns=self._unix_clock(),
                trace=trace,
                record=record,
            )
            if trace is not None:
                self._traced[key] = (start, trace)
            engine = self._engine  # once: another thread may leave it
            if engine is not None and record:
                engine.holds(request)
            return request
        except BaseException:  # an interrupt: nobody will finish it
            self._gone(key)
            raise

    def join(self, folder: Path, engine: str) -> bool:
        """This process is one of those that serve the requests of `engine`: they share their stalls in `folder`.

        Returns whether it now is, and was not before. Where it cannot be, that is counted and said once, and each
        process charges its own stalls.
        """
        if self.engine == engine:
            return False
        self.leave()
        try:
            self._engine = Engine(folder, engine)
        except OSError as error:
            self._misuse("engine", f"the stalls of engine {engine!r} are not shared: {folder}: {error.strerror}")
        return self._engine is not None

    @property
    def engine(self) -> str | None:
        """The name of the engine that this process has joined."""
        engine = self._engine
        return None if engine is None else engine.name

    def leave(self) -> None:
        """Shares no more stalls."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.leave()

    def _enlist(self, key: int) -> int:
        """Begins the life of the request `key`, and gives up those that nobody will finish. Returns its start."""
        given_up = 0
        with self._lock:
            if not self._steps:  # else the engine goes on with the last batch, or with another one
                self._batches.forget()
            with suppress(IndexError):  # not `while self._abandoned`: a signal's handler may take the last one
                while True:
                    given_up += self._gone(self._abandoned.popleft())
            # Inside the lock, and its place taken before the clock is read, so that the oldest stays first.
            self._live[key] = 0
            start = self._live[key] = self._clock()
            crowded = len(self._live) > MAX_LIVE
            if crowded:
                self._gone(next(iter(self._live)))
        for _ in range(given_up):
            self._misuse("abandoned", "a request was dropped without finish(); it is in no figure")
        with suppress(IndexError):
            while True:
                self._unended.popleft()
                self._misuse("unended", "a step was begun and not ended (a thread died in it?); it counts no more")
        if crowded:
            self._misuse("crowded", f"more than {MAX_LIVE} requests are alive; the oldest is in no figure")
        return start

    def _gone(self, key: int) -> bool:
        """The request `key` is live no more. Returns whether it was."""
        self._traced.pop(key, None)
        return self._live.pop(key, None) is not None

    def _sent(self, traceparent: str) -> Trace | None:
        try:
            return parse_traceparent(traceparent)
        except ValueError as error:
            what = f"a request's trace is {error}; the request has the current span's, if any"
            if not isinstance(traceparent, str):
                self._misuse("traceparent_type", what)
            else:
                if self._on_client_error is not None:
                    self._on_client_error("traceparent")
                self._say("traceparent", what, "client_errors_total")
            return current_trace()

    def step(
        self,
        batch: Iterable[LiveRequest | str | tuple[LiveRequest | str, int]],
        id: str | int | None = None,  # noqa: A002  # what users call it
    ) -> Step:
        """One engine iteration over `batch`; the thread that runs it is a serving thread from now on.

        An entry is a request, or the id of one that another process holds; a number of tokens beside it may be given.
        All ranks that run the same iteration give it the same `id`.
        """
        return Step(self, self._batches.read(batch, self._engine is not None), id)

    def stall(self, start_ns: int, end_ns: int, thread: int, phases: Phases = ()) -> None:
        """Takes note of a finished cold call of `thread`, as `this_thread` numbers them, and of its `phases`."""
        step = self._step_of(thread)
        oldest = self._oldest()
        if oldest is not None:
            self._stalls.add(start_ns, end_ns, thread, oldest, tag_of(step))
            if phases and self.is_serving(thread):
                self._calls.append((start_ns, end_ns, phases))
        engine = self._engine
        if engine is not None and self.is_serving(thread):
            engine.stalled(start_ns, end_ns, step)

    def show_open(self) -> None:
        """Cold calls began or ended: peers are told of the oldest in progress."""
        engine = self._engine
        if engine is not None:
            own = [(start, thread) for start, thread in self._own_open() if self.is_serving(thread)]
            oldest = min(own, default=None)
            engine.show_open(None if oldest is None else (oldest[0], self._step_of(oldest[1])))

    def fallback(self, op: str, bucket: str, reason: FallbackReason) -> Fallback:
        """A block around an op's fallback: its time is a part of the step that this thread is in, if any."""
        return Fallback(self, op, bucket, reason)

    def calls_since(self, start_ns: int) -> list[Call]:
        """The remembered cold calls that ended after that."""
        found: list[Call] = []
        for call in reversed(list(self._calls)):  # a copy: other threads append; in the order of their ends
            if call[1] <= start_ns:
                break
            found.append(call)
        return found

    def is_holding(self) -> bool:
        """Whether there is a live request or a step in progress."""
        return bool(self._live or self._steps)

    def waiting(self, before_ns: int) -> list[Trace]:
        """The traces of the live requests that came before that time, the longest waiting first."""
        return [trace for start, trace in list(self._traced.values()) if start < before_ns]

    def traced_steps(self, since_ns: int, until_ns: int) -> list[TracedStep]:
        """The steps with traced requests that lay between the two, of the last `MAX_TRACED_STEPS`, and those under way.

        Empty while no request is traced: then no step is remembered.
        """
        found = [step for step in list(self._traced_steps) if step[0] < until_ns and step[1] > since_ns]
        if self._traced:
            for batch, running in list(self._steps.values()):
                if running.start < until_ns and batch.traces:
                    found.append((running.start, until_ns, running.thread, batch.traces))
        return found

    def _oldest(self) -> int | None:
        """From when on stalls may matter: since the first of the live requests and steps in progress began.

        Takes no lock: it is asked while peers are heard, and who boils a request down hears them under the lock.
        """
        starts = [running.start for _, running in list(self._steps.values())]
        while True:
            try:
                first = next(iter(self._live.values()), None)
                return min(starts if first is None else [first, *starts], default=None)
            except RuntimeError:  # one came or went in between
                continue

    def _step_of(self, thread: int) -> object:
        """The id of the step that a thread is in."""
        under_way = self._running.get(thread)
        with suppress(IndexError):  # its last one may just end
            return under_way[-1].id if under_way else None
        return None

    def _open(self) -> list[tuple[int, int]]:
        """Cold calls in progress, here and in peers. What these end meanwhile is taken in after: see `OpenStalls`."""
        found = list(self._own_open())
        engine = self._engine
        if engine is not None:
            found += [(start, COUNTED) for start, _ in engine.open_stalls()]
            self._hear()
        return found

    def _is_calm(self, start: int, end: int) -> bool:
        """Whether nobody was in a cold call between the two, as far as can be told without a lock: the usual case."""
        try:
            stalls = self._stalls
            if (stalls._finished and stalls.ended_after(start)) or self._own_open():
                return False
            engine = self._engine
            return engine is None or engine.is_quiet(end)
        except Exception:
            return False  # whoever looks closer says what is wrong

    def _hear(self) -> None:
        engine = self._engine
        if engine is None:
            return

        def stalled(start: int, end: int, tag: int) -> None:
            oldest = self._oldest()
            if oldest is not None:
                self._stalls.add(start, end, COUNTED, oldest, tag)

        try:
            engine.hear(stalled)
        except Exception as error:
            self._misuse("engine", f"the stalls of other processes are missing: {type(error).__name__}: {error}")

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
            cost = cost_of(self, request, end, error)
            # Only now: what it stood behind had to be kept until here.
            if self._gone(request._key) and request.record:
                self._bus.publish(cost)
        except Exception as fault:
            self._misuse("finish", f"request {request.id!r} is in no figure: {type(fault).__name__}: {fault}")

    def after_fork(self) -> None:
        """For a forked child: its parent's requests and steps are the parent's, and the lock may be held by nobody."""
        self._lock = threading.RLock()
        self._live.clear()
        self._traced.clear()
        self._steps.clear()
        self._running.clear()
        self._batches.forget()
        self._abandoned.clear()
        self._unended.clear()
        self._calls.clear()
        self._traced_steps.clear()
        self._stalls.after_fork()
        engine, self._engine = self._engine, None
        if engine is not None:  # the journal is the parent's
            engine.after_fork()
            self.join(engine.folder, engine.name)

    def _misuse(self, kind: str, message: str) -> None:
        """Counts a misuse, and says so the first time it is seen."""
        if self._on_error is not None:
            self._on_error("requests")
        self._say(kind, message, "errors_total")

    def _say(self, kind: str, message: str, counted_in: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning("tritonprobe: %s (said once, counted in %s)", message, counted_in)
