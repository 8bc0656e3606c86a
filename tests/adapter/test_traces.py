"""A cold call knows the span in which it began, as a request does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tritonprobe.ledger import Exemplar, HistogramSample, schema
from tritonprobe.runtime import Runtime

X = torch.empty(64)


def test_a_cold_call_leaves_the_trace_of_the_span_it_stalled(instrumented: Runtime, add: Callable[..., Any]) -> None:
    with TracerProvider(sampler=ALWAYS_ON).get_tracer("tests").start_as_current_span("generate") as span:
        add(X, X, X, 64)
    add(X, X, X, 1)  # cold again (n == 1 is another variant), and nobody's
    add(X, X, X, 64)
    context = span.get_span_context()
    ids = (trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id))
    assert [call.trace for call in instrumented.cold_calls] == [ids, None]
    (family,) = (found for found in instrumented.ledger.collect() if found.metric is schema.COLD_CALL_SECONDS)
    traced = [s.traced for s in family.samples if isinstance(s, HistogramSample) and s.traced is not None]
    assert [(one.exemplar, one.value) for one in traced] == [(Exemplar(*ids), instrumented.cold_calls[0].wall_ns / 1e9)]
