"""Spans of cold calls, fallbacks and requests: a subscriber that makes them when the event is over.

A cold call's span is a child of the span that was current on its thread; where none was, of the request that had
waited longest; and it links to all others that stood behind it. Each of these gets a short span of its own, `stall`,
which links back. Start and end are those of the event, to the nanosecond. Whoever is not sampled costs one look.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from tritonprobe._version import __version__
from tritonprobe.export.otel import attributes
from tritonprobe.export.otel import conventions as names
from tritonprobe.model import ColdCall, Event, FellBack, GpuLaunches, PrewarmEnded, RequestCost
from tritonprobe.tracing import Trace

MAX_LINKS = 128
"""Requests that one span links to, as many as OpenTelemetry keeps by default."""
MAX_STALLS = 64
"""Stalls shown of one request."""
RECENT = 1024
"""Cold calls remembered for the requests that stood behind them."""
BURST, A_SECOND = 4096, 512
"""Spans that may be made at once, and those that each second adds: a batch processor drops what comes faster."""


@dataclass(frozen=True, slots=True)
class _Recent:
    """A cold call of a serving thread whose span was recorded."""

    call: ColdCall
    context: SpanContext


class Spans:
    """Made for `Bus.subscribe`. `waiting(before_ns)` gives the traces of the live requests that came before then."""

    def __init__(
        self,
        provider: TracerProvider,
        waiting: Callable[[int], list[Trace]],
        rank: str,
        on_drop: Callable[[str, int], None],
    ) -> None:
        """``on_drop(what, n)`` is told of `n` spans or links that a bound kept from being made."""
        self._tracer = provider.get_tracer(names.SCOPE, __version__)
        self._waiting = waiting
        self._rank = rank
        self._on_drop = on_drop
        self._recent: deque[_Recent] = deque(maxlen=RECENT)
        self._warmups: deque[tuple[int, SpanContext]] = deque(maxlen=MAX_LINKS)
        self._budget = _Budget()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ColdCall):
            self._cold_call(event)
        elif isinstance(event, RequestCost):
            if event.trace is not None:
                self._request(event, event.trace)
        elif isinstance(event, FellBack):
            self._fell_back(event)
        elif isinstance(event, PrewarmEnded):
            self._prewarm(event)
        elif isinstance(event, GpuLaunches):
            self._launches(event)

    def _cold_call(self, call: ColdCall) -> None:
        waited = [] if call.background else self._waiting(call.end_ns)
        name = f"{names.COLD_CALL} {_short(call.kernel)}"
        start = call.unix_ns
        span = self._start(name, call.trace, waited, start)
        if span is None:
            return
        span.set_attributes(attributes.of_cold_call(call, self._rank, len(waited)))
        if call.error is not None:
            span.set_attribute(names.ERROR_TYPE, call.error)
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        at = start
        for phase, ns in call.phases:
            if ns > 0:
                self._phase(call, inside, phase, at, at + ns)
                at += ns
        span.end(start + call.wall_ns)
        if call.mode == "warmup":
            self._warmups.append((call.start_ns, span.get_span_context()))
        if not call.background:
            self._recent.append(_Recent(call, span.get_span_context()))

    def _phase(self, call: ColdCall, inside: Context, phase: str, start: int, end: int) -> None:
        if not self._budget.take():
            self._on_drop("span", 1)
            return
        child = self._tracer.start_span(f"{names.PHASE} {phase}", inside, start_time=start)
        child.set_attribute(names.PHASE_NAME, phase)
        if phase == "autotune" and call.tuning is not None:
            child.set_attributes(attributes.of_tuning(call.tuning))
        child.end(end)

    def _fell_back(self, event: FellBack) -> None:
        waited = self._waiting(event.end_ns)
        span = self._start(f"{names.FALLBACK} {_short(event.op)}", event.trace, waited, event.unix_ns)
        if span is not None:
            span.set_attributes({names.OP: event.op, names.BUCKET: event.bucket, names.REASON: event.reason})
            span.end(event.unix_ns + event.end_ns - event.start_ns)

    def _launches(self, event: GpuLaunches) -> None:
        for launch in event.launches:
            span = self._start(f"{names.LAUNCH} {_short(launch.kernel)}", None, launch.traces, launch.unix_ns)
            if span is not None:
                span.set_attributes({names.KERNEL: launch.kernel, names.BUCKET: launch.bucket})
                span.set_attribute(names.GPU_QUEUE, max(0, launch.start_ns - launch.launched_ns) / 1e9)
                span.end(launch.unix_ns + launch.end_ns - launch.start_ns)
        if event.left_out:
            self._on_drop("launch", event.left_out)

    def _prewarm(self, event: PrewarmEnded) -> None:
        """A span of its own, which links to the variants that it made: the last ones, where these are many."""
        made = [context for start, context in list(self._warmups) if event.start_ns <= start < event.end_ns]
        span = self._start(names.PREWARM, event.trace, (), event.unix_ns, [Link(context) for context in made])
        if span is not None:
            span.set_attributes(attributes.of_prewarm(event))
            span.end(event.unix_ns + event.end_ns - event.start_ns)

    def _request(self, cost: RequestCost, trace: Trace) -> None:
        span = self._start(names.REQUEST, trace, (), cost.unix_ns)
        if span is None:
            return
        span.set_attributes(dict(attributes.of_request(cost)))
        if cost.error is not None:
            span.set_attribute(names.ERROR_TYPE, cost.error)
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        trace_id = span.get_span_context().trace_id
        stalls = [
            recent
            for recent in list(self._recent)
            if recent.call.start_ns < cost.end_ns
            and recent.call.end_ns > cost.start_ns
            and recent.context.trace_id != trace_id  # else it is here itself
        ]
        if len(stalls) > MAX_STALLS:
            self._on_drop("span", len(stalls) - MAX_STALLS)
        for recent in stalls[-MAX_STALLS:]:
            self._stall(cost, recent, inside)
        span.end(cost.unix_ns + cost.end_ns - cost.start_ns)

    def _stall(self, cost: RequestCost, recent: _Recent, inside: Context) -> None:
        if not self._budget.take():
            self._on_drop("span", 1)
            return
        call = recent.call
        offset = cost.unix_ns - cost.start_ns
        span = self._tracer.start_span(
            names.STALL, inside, links=[Link(recent.context)], start_time=offset + max(cost.start_ns, call.start_ns)
        )
        span.set_attributes({names.KERNEL: call.kernel, names.BUCKET: call.bucket, names.TIER: call.tier})
        span.end(offset + min(cost.end_ns, call.end_ns))

    def _start(
        self, name: str, parent: Trace | None, waited: Sequence[Trace], start: int, made: Sequence[Link] = ()
    ) -> Span | None:
        """A recording span, a child of `parent` or of the first who `waited`, with links to the rest and to `made`."""
        if parent is None and waited:
            parent = waited[0]
        others = [Link(_context(trace)) for trace in dict.fromkeys(waited[: MAX_LINKS + 1]) if trace != parent]
        links = [*others, *made]
        if not self._budget.take():
            self._on_drop("span", 1)
            return None
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(_context(parent)), Context())
        span = self._tracer.start_span(name, context, links=links[:MAX_LINKS], start_time=start)
        if not span.is_recording():
            return None
        beyond = len(waited) - MAX_LINKS - 1
        if beyond > 0:
            self._on_drop("link", beyond)
        return span


class _Budget:
    """How many spans may be made now: a bucket that time fills. Without a lock: two threads may share one token."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(float(BURST), self._left + (now - self._at) * A_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _context(trace: Trace) -> SpanContext:
    return SpanContext(int(trace[0], 16), int(trace[1], 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _short(name: str) -> str:
    return name.rpartition(".")[2]
