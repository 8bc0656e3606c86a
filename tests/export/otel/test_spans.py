"""Spans in a real SDK: whose child a cold call is, what it links to, and that times are exact to the nanosecond."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from tritonprobe.bus import Bus
from tritonprobe.export.otel import spans
from tritonprobe.export.otel.spans import Spans
from tritonprobe.model import ColdCall, GpuLaunch, GpuLaunches, LaunchError, PrewarmEnded, Trial, Tuning
from tritonprobe.requests import Requests
from tritonprobe.requests.threads import this_thread

HERE = this_thread()
MS = 1_000_000
UNIX = 1_790_000_000_000_000_001  # no float can hold it
PHASES = (("frontend", 10 * MS + 1), ("ptx", 25 * MS + 3), ("other", 5 * MS))


def trace(number: int) -> tuple[str, str]:
    return f"{number:032x}", f"{number:016x}"


def header(number: int) -> str:
    return "00-{}-{}-01".format(*trace(number))


class Traced:
    """A server whose clock the test turns, its requests, and the spans that came out."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.now = 0
        self.dropped: list[tuple[str, int]] = []
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler or ParentBased(ALWAYS_ON), span_limits=SpanLimits(max_links=1000))
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.bus = Bus()
        self.requests = Requests(self.bus, clock=lambda: self.now, unix_clock=lambda: UNIX + self.now)
        self.bus.subscribe(Spans(provider, self.requests.waiting, "3", lambda what, n: self.dropped.append((what, n))))

    def cold_call(self, **changes: Any) -> ColdCall:
        wall = sum(ns for _, ns in PHASES)
        defaults: dict[str, Any] = {
            "kernel": "shop.kernels.softmax",
            "bucket": "N=1024",
            "tier": "compile",
            "start_ns": self.now,
            "end_ns": self.now + wall,
            "unix_ns": UNIX + self.now,
            "phases": PHASES,
            "lookups": (),
            "reasons": ("n: %16 -> other",),
        }
        call = ColdCall(**{**defaults, **changes})
        self.now = call.end_ns
        self.requests.stall(call.start_ns, call.end_ns, HERE, call.phases)
        self.bus.publish(call)
        return call

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def parent(span: ReadableSpan) -> tuple[str, str] | None:
    found = span.parent
    return None if found is None else (format_trace_id(found.trace_id), format_span_id(found.span_id))


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(format_trace_id(link.context.trace_id), format_span_id(link.context.span_id)) for link in span.links]


def test_a_cold_call_and_its_phases_to_the_nanosecond():
    traced = Traced()
    traced.cold_call()
    (call,) = traced.spans("cold_call")
    assert call.name == "cold_call softmax"
    assert (call.start_time, call.end_time) == (UNIX, UNIX + 40 * MS + 4)
    phases = traced.spans("phase")
    assert [(p.name, p.start_time, p.end_time) for p in phases] == [
        ("phase frontend", UNIX, UNIX + 10 * MS + 1),
        ("phase ptx", UNIX + 10 * MS + 1, UNIX + 35 * MS + 4),
        ("phase other", UNIX + 35 * MS + 4, UNIX + 40 * MS + 4),
    ]
    assert all(parent(p) == ids(call) for p in phases)
    assert call.attributes == {
        "tritonprobe.kernel": "shop.kernels.softmax",
        "tritonprobe.bucket": "N=1024",
        "tritonprobe.tier": "compile",
        "tritonprobe.mode": "launch",
        "tritonprobe.kind": "triton",
        "tritonprobe.reasons": ("n: %16 -> other",),
        "tritonprobe.background": False,
        "tritonprobe.after_ready": False,
        "tritonprobe.rank": "3",
        "tritonprobe.waiting": 0,
    }


def test_it_is_the_child_of_the_one_that_waited():
    traced = Traced()
    request = traced.requests.request("r", "llama", header(7))
    traced.cold_call()
    request.token()
    request.finish()
    (call,) = traced.spans("cold_call")
    assert (parent(call), links(call)) == (trace(7), [])
    (of_request,) = traced.spans("tritonprobe.request")
    assert parent(of_request) == trace(7)
    assert traced.spans("stall") == []  # the cold call itself is in this trace


def test_of_several_it_is_the_oldests_child_and_links_to_the_rest_which_link_back():
    traced = Traced()
    requests = [traced.requests.request(str(i), traceparent=header(i)) for i in (1, 2, 3)]
    traced.now += 5
    late = traced.requests.request("late", traceparent=header(4))
    call = traced.cold_call()
    after = traced.requests.request("after", traceparent=header(5))
    for request in (*requests, late, after):
        request.finish()
    (span,) = traced.spans("cold_call")
    assert parent(span) == trace(1)
    assert links(span) == [trace(2), trace(3), trace(4)]
    stalls = traced.spans("stall")
    assert [links(stall) for stall in stalls] == [[ids(span)]] * 3
    assert {ids(stall)[0] for stall in stalls} == {trace(2)[0], trace(3)[0], trace(4)[0]}
    assert {(s.start_time, s.end_time) for s in stalls} == {(UNIX + call.start_ns, UNIX + call.end_ns)}


def test_a_stall_is_cut_to_the_life_that_stood_behind_it():
    traced = Traced()
    first = traced.requests.request("first", traceparent=header(1))
    second = traced.requests.request("second", traceparent=header(2))
    traced.now = 10
    call = traced.cold_call(start_ns=-30, end_ns=70, unix_ns=UNIX - 30, phases=(("other", 100),))
    second.finish()
    (stall,) = traced.spans("stall")
    assert call.start_ns < second.start_ns
    assert (stall.start_time, stall.end_time) == (UNIX, UNIX + 70)
    first.finish()


def test_a_span_of_its_own_thread_comes_before_those_who_wait():
    traced = Traced()
    waits = traced.requests.request("r", traceparent=header(1))
    traced.cold_call(trace=trace(9))
    (span,) = traced.spans("cold_call")
    assert (parent(span), links(span)) == (trace(9), [trace(1)])
    waits.finish()


def test_a_background_call_is_nobodys():
    traced = Traced()
    request = traced.requests.request("r", traceparent=header(1))
    traced.cold_call(background=True)
    request.finish()
    (span,) = traced.spans("cold_call")
    assert (parent(span), links(span)) == (None, [])
    assert traced.spans("stall") == []


def test_a_call_that_raised_is_an_error():
    traced = Traced()
    traced.cold_call(error="CompilationError")
    (span,) = traced.spans("cold_call")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "CompilationError"


def test_a_tuning_is_told_with_its_phase():
    traced = Traced()
    tuning = Tuning("(16,)", (Trial("a", "ok", 1e-4, 1), Trial("b", "error", None, 1)), 2, "a", False, 7)
    traced.cold_call(phases=(("autotune", 30 * MS), ("module_load", 10 * MS + 4)), tuning=tuning)
    tuned, loaded = traced.spans("phase")
    assert tuned.attributes == {
        "tritonprobe.phase": "autotune",
        "tritonprobe.autotune.key": "(16,)",
        "tritonprobe.autotune.trials": 2,
        "tritonprobe.autotune.pruned": 2,
        "tritonprobe.autotune.winner": "a",
        "tritonprobe.autotune.from_disk": False,
    }
    assert loaded.attributes == {"tritonprobe.phase": "module_load"}


def test_a_fallback_is_seen_by_those_who_are_traced():
    traced = Traced()
    with traced.requests.fallback("shop.matmul", "M<=8", "unsupported_dtype"):
        traced.now += 100
    assert traced.exporter.get_finished_spans() == ()  # nobody is traced: not even an event
    request = traced.requests.request("r", traceparent=header(1))
    with traced.requests.step([request]), traced.requests.fallback("shop.matmul", "M<=8", "unsupported_dtype"):
        traced.now += 50
    request.finish()
    (span,) = traced.spans("fallback")
    assert span.name == "fallback matmul"
    assert (span.start_time, span.end_time) == (UNIX + 100, UNIX + 150)
    assert parent(span) == trace(1)
    assert span.attributes == {
        "tritonprobe.op": "shop.matmul",
        "tritonprobe.bucket": "M<=8",
        "tritonprobe.reason": "unsupported_dtype",
    }


def test_a_prewarming_is_one_span_that_links_to_what_it_made():
    traced = Traced()
    traced.cold_call(mode="warmup", background=True)  # of another one, before
    start = traced.now
    for _ in range(2):
        traced.cold_call(mode="warmup", background=True)
    traced.bus.publish(PrewarmEnded(start, traced.now, UNIX + start, 5, 2, 2, 1, 0.75, "deadline", trace(1)))
    (span,) = traced.spans("prewarm")
    assert (span.start_time, span.end_time) == (UNIX + start, UNIX + traced.now)
    assert parent(span) == trace(1)
    assert links(span) == [ids(call) for call in traced.spans("cold_call")[1:]]
    assert span.attributes == {
        "tritonprobe.prewarm.planned": 5,
        "tritonprobe.prewarm.replayed": 2,
        "tritonprobe.prewarm.there_before": 2,
        "tritonprobe.prewarm.skipped": 1,
        "tritonprobe.prewarm.coverage": 0.75,
        "tritonprobe.prewarm.stopped": "deadline",
    }


def test_a_request_tells_its_life_in_parts():
    traced = Traced()
    request = traced.requests.request("r-1", "llama", header(1))
    traced.now = 10 * MS
    with traced.requests.step([request]):
        traced.cold_call()
        traced.now += 10 * MS
    request.token()
    traced.now += 20 * MS
    request.token()
    request.finish(error="Cancelled")
    (span,) = traced.spans("tritonprobe.request")
    found = dict(span.attributes or {})
    exact = {name: value for name, value in found.items() if not isinstance(value, float)}
    assert exact == {
        "tritonprobe.request.id": "r-1",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "llama",
        "gen_ai.usage.output_tokens": 2,
        "tritonprobe.pipelined": False,
        "error.type": "Cancelled",
    }
    stall = 0.040000004
    assert {name: value for name, value in found.items() if isinstance(value, float)} == {
        "tritonprobe.time_to_first_token": 0.060000004,
        "tritonprobe.time_per_output_token": 0.02,
        "tritonprobe.exposure.before_first_token.in_batch": stall,
        "tritonprobe.exposure.before_first_token.queued": 0.0,
        "tritonprobe.exposure.after_first_token.in_batch": 0.0,
        "tritonprobe.exposure.after_first_token.queued": 0.0,
        "tritonprobe.exposure.phase.frontend": 0.010000001,
        "tritonprobe.exposure.phase.ptx": 0.025000003,
        "tritonprobe.exposure.phase.other": 0.005,
        "tritonprobe.part.queue": 0.01,
        "tritonprobe.part.execution": 0.01,
        "tritonprobe.part.exposure": stall,
        "tritonprobe.part.fallback": 0.0,
        "tritonprobe.part.remainder": 0.02,
    }
    assert (span.start_time, span.end_time) == (UNIX, UNIX + traced.now)


def test_what_nobody_samples_makes_no_span():
    traced = Traced(ALWAYS_OFF)
    request = traced.requests.request("r", traceparent=header(1))
    traced.cold_call()
    request.finish()
    assert traced.exporter.get_finished_spans() == ()
    quiet = Traced()
    request = quiet.requests.request("r", traceparent="00-{}-{}-00".format(*trace(1)))
    request.finish()
    assert quiet.exporter.get_finished_spans() == ()


def test_links_are_bounded_and_the_rest_is_counted():
    traced = Traced()
    many = [traced.requests.request(str(i), traceparent=header(i + 1)) for i in range(spans.MAX_LINKS + 10)]
    traced.cold_call()
    (span,) = traced.spans("cold_call")
    assert len(span.links) == spans.MAX_LINKS
    assert span.attributes is not None
    assert span.attributes["tritonprobe.waiting"] == len(many)
    assert traced.dropped == [("link", 9)]  # one of all is its parent
    for request in many:
        request.finish()


def test_a_storm_of_cold_calls_is_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    traced = Traced()
    calls = 2 * spans.BURST // (len(PHASES) + 1)
    for _ in range(calls):
        traced.cold_call()
    made = len(traced.exporter.get_finished_spans())
    assert made == spans.BURST
    assert sum(n for _, n in traced.dropped) > 0
    assert {what for what, _ in traced.dropped} == {"span"}


def test_stalls_of_one_request_are_bounded():
    traced = Traced()
    oldest = traced.requests.request("oldest", traceparent=header(1))
    request = traced.requests.request("r", traceparent=header(2))
    for _ in range(spans.MAX_STALLS + 5):
        traced.cold_call(phases=(("other", 40 * MS + 4),))
    request.finish()
    assert len(traced.spans("stall")) == spans.MAX_STALLS
    assert traced.dropped == [("span", 5)]
    oldest.finish()


def launch(at: int, *traces: tuple[str, str]) -> GpuLaunch:
    """On the GPU from `at` for 7 us, launched 20 us before."""
    return GpuLaunch("shop.kernels.softmax", "N=1024", at - 20_000, at, at + 7_000, UNIX + at, traces)


def test_a_launch_of_a_sample_is_a_child_of_the_first_request_and_linked_to_the_others():
    traced = Traced()
    traced.bus.publish(GpuLaunches((launch(MS, trace(1), trace(2)), launch(2 * MS, trace(2))), left_out=5))
    first, second = traced.spans("launch softmax")
    assert (parent(first), parent(second)) == (trace(1), trace(2))
    assert [(format_trace_id(x.context.trace_id), format_span_id(x.context.span_id)) for x in first.links] == [trace(2)]
    assert second.links == ()
    assert (first.start_time, first.end_time) == (UNIX + MS, UNIX + MS + 7_000)
    assert first.attributes == {
        "tritonprobe.kernel": "shop.kernels.softmax",
        "tritonprobe.bucket": "N=1024",
        "tritonprobe.gpu_queue": 2e-5,
    }
    assert traced.dropped == [("launch", 5)]


def test_launches_are_within_the_bounds_of_all_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    traced = Traced()
    for _ in range(spans.BURST + 3):
        traced.bus.publish(GpuLaunches((launch(MS, trace(1)),), left_out=0))
    assert len(traced.spans("launch")) == spans.BURST
    assert traced.dropped == [("span", 1)] * 3
    unsampled = Traced(ALWAYS_OFF)
    unsampled.bus.publish(GpuLaunches((launch(MS, trace(1)),), left_out=0))
    assert unsampled.spans("launch") == []


def test_other_events_make_none():
    traced = Traced()
    traced.bus.publish(LaunchError("k", "E", "launch"))
    assert traced.exporter.get_finished_spans() == ()
