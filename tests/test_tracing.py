"""Which trace something belongs to: by a real OpenTelemetry SDK, and by headers as W3C's Trace Context defines them."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from tritonprobe.tracing import Trace, current_trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def span(sampler: Sampler = ALWAYS_ON) -> Iterator[Trace]:
    """A span that is current, and its ids as the SDK writes them."""
    with TracerProvider(sampler=sampler).get_tracer("tests").start_as_current_span("serve") as started:
        context = started.get_span_context()
        yield trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


# The current span


def test_the_current_span_is_the_innermost_one() -> None:
    assert current_trace() is None
    with span() as outer:
        assert current_trace() == outer
        with span() as inner:
            assert current_trace() == inner
            assert inner[0] == outer[0]
        assert current_trace() == outer
    assert current_trace() is None


def test_a_span_that_is_not_sampled_is_none() -> None:
    with span(ALWAYS_OFF):
        assert current_trace() is None


@pytest.mark.parametrize("api", [types.ModuleType("half_imported"), None], ids=["half imported", "given up"])
def test_what_cannot_be_read_is_none(api: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with span():
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
        assert current_trace() is None


def test_opentelemetry_is_never_imported_for_it() -> None:
    code = (
        "import sys, tritonprobe\n"
        "with tritonprobe.request() as r: r.token()\n"
        "print(r.trace, [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None []\n"


# The header

hexes = st.sampled_from("0123456789abcdef")
trace_ids = st.integers(1, 2**128 - 1).map("{:032x}".format)
span_ids = st.integers(1, 2**64 - 1).map("{:016x}".format)
flags = st.integers(0, 255)


def test_the_example_of_the_specification() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01") == (TRACE, SPAN)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") is None


@given(trace_ids, span_ids, flags)
def test_every_header_is_read_and_only_the_sampled_flag_counts(trace_id: str, span_id: str, flag: int) -> None:
    expected = (trace_id, span_id) if flag % 2 else None
    assert parse_traceparent(f"00-{trace_id}-{span_id}-{flag:02x}") == expected


@given(st.integers(1, 254), trace_ids, span_ids, st.text())
def test_a_later_version_may_append_what_it_likes(version: int, trace_id: str, span_id: str, more: str) -> None:
    header = f"{version:02x}-{trace_id}-{span_id}-01"
    assert parse_traceparent(header) == parse_traceparent(f"{header}-{more}") == (trace_id, span_id)


@given(trace_ids, span_ids)
def test_what_the_sdk_sends_is_read(trace_id: str, span_id: str) -> None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(context)))
    assert parse_traceparent(carrier["traceparent"]) == (trace_id, span_id)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "-".join(["00", TRACE, SPAN]),  # no flags
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 has no more
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01more",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",  # two headers, joined
        f"0\N{FULLWIDTH DIGIT ZERO}-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01".encode(),
        7,
    ],
)
def test_a_malformed_header_is_refused(header: object) -> None:
    with pytest.raises(ValueError, match="not a W3C traceparent: "):
        parse_traceparent(header)  # type: ignore[arg-type]


@given(st.text() | st.lists(hexes | st.just("-"), min_size=50, max_size=60).map("".join))
def test_any_text_is_read_or_refused(header: str) -> None:
    try:
        found = parse_traceparent(header)
    except ValueError:
        return
    assert found is None or [len(part) for part in found] == [32, 16]
