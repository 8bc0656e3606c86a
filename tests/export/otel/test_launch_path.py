"""Tracing adds nothing to a launch: the same functions run as without it, and no event is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import tritonprobe
from tests.export.otel.cold_script import double_kernel
from tritonprobe.bus import Subscriber
from tritonprobe.export.otel.metrics import Metrics
from tritonprobe.export.otel.spans import Spans
from tritonprobe.model import Event
from tritonprobe.runtime import current
from tritonprobe.testing import compile_only


def test_a_hot_launch_runs_what_it_runs_without_tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    runtime = current()
    values = torch.zeros(32)
    events: list[Event] = []
    with compile_only("cuda:90"):
        tritonprobe.instrument()
        try:
            double_kernel[(1,)](values, 32, BLOCK=32)  # cold

            def on_the_path() -> list[object]:
                return [JITFunction.run, *(entry[4] for entry in double_kernel.device_caches.values())]

            before = on_the_path()
            listeners: list[Subscriber] = [
                Spans(TracerProvider(), runtime.live.waiting, "0", lambda what, n: None),
                Metrics(MeterProvider(), runtime.ledger),
                events.append,
            ]
            for listener in listeners:
                runtime.bus.subscribe(listener)
            try:
                with runtime.live.request("r") as request, runtime.live.step([request]):
                    for _ in range(100):
                        double_kernel[(1,)](values, 32, BLOCK=32)
                    assert events == []
                assert on_the_path() == before
            finally:
                for listener in listeners:
                    runtime.bus.unsubscribe(listener)
        finally:
            tritonprobe.uninstrument()
