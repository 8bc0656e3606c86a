"""As an OpenTelemetry instrumentation: by hand with providers, and by `opentelemetry-instrument` on a plain script."""

# ruff: noqa: E402  # what may not be installed is asked for first

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.conftest import require_module

require_module("opentelemetry.instrumentation")

from tests.export.otel.receiver import Receiver, receiving
from tritonprobe import runtime
from tritonprobe.export.otel.instrumentor import TritonProbeInstrumentor
from tritonprobe.export.otel.metrics import Metrics
from tritonprobe.export.otel.spans import Spans
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.testing import compile_only

ROOT = Path(__file__).parent.parent.parent.parent
SCRIPT = Path(__file__).with_name("cold_script.py")
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime that nobody else uses."""
    mine = Runtime(Settings())
    monkeypatch.setattr(runtime, "_current", mine)
    yield mine
    mine.adapter.uninstall()


def launch() -> None:
    import torch

    from tests.export.otel.cold_script import double_kernel

    double_kernel[(1,)](torch.zeros(8), 8, BLOCK=8)


def test_providers_are_passed_in_and_uninstrument_leaves_no_trace(probe: Runtime, tmp_path: Path, monkeypatch):
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    before = JITFunction.run
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = TritonProbeInstrumentor()
    with compile_only("cuda:90"):
        instrumentor.instrument(tracer_provider=tracers, meter_provider=MeterProvider([reader]))
        try:
            launch()
            names = [span.name for span in exporter.get_finished_spans()]
            assert "cold_call double_kernel" in names
            assert {"phase frontend", "phase llir", "phase cubin"} <= set(names)
            data = reader.get_metrics_data()
            assert data is not None
            metrics = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
            assert {"tritonprobe.launches", "tritonprobe.cold_call"} <= metrics
        finally:
            instrumentor.uninstrument()
        assert JITFunction.run is before
        assert not [s for s in probe.bus._subscriptions if isinstance(s.call, (Spans, Metrics))]
        exporter.clear()
        launch()
        assert exporter.get_finished_spans() == ()


def test_a_probe_that_was_there_before_stays(probe: Runtime):
    from triton.runtime.jit import JITFunction

    import tritonprobe

    before = JITFunction.run
    tritonprobe.instrument()
    ours = JITFunction.run
    TritonProbeInstrumentor().instrument(tracer_provider=TracerProvider(), meter_provider=MeterProvider())
    TritonProbeInstrumentor().uninstrument()
    assert JITFunction.run is ours
    assert probe.adapter.registry.everything
    tritonprobe.uninstrument()
    assert JITFunction.run is before


def test_disabled_it_does_nothing(monkeypatch: pytest.MonkeyPatch):
    off = Runtime(Settings(disabled=True))
    monkeypatch.setattr(runtime, "_current", off)
    subscribers = len(off.bus._subscriptions)
    TritonProbeInstrumentor().instrument(tracer_provider=TracerProvider(), meter_provider=MeterProvider())
    assert len(off.bus._subscriptions) == subscribers
    TritonProbeInstrumentor().uninstrument()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH with what an installer writes of our entry points, from pyproject.toml."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "tritonprobe_as_installed-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tritonprobe-as-installed\nVersion: 0\n")
    lines = []
    for group, points in ENTRY_POINTS.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


def instrumented(script: Path, receiver: Receiver, installed: str, cache: Path, **more: str) -> None:
    """Runs `opentelemetry-instrument python SCRIPT`, with OpenTelemetry's own settings and a cold cache."""
    require_module("opentelemetry.distro")
    require_module("opentelemetry.exporter.otlp.proto.http")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([installed, os.environ.get("PYTHONPATH", str(ROOT))]),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_LOGS_EXPORTER": "none",
        "TRITON_CACHE_DIR": str(cache),
        **more,
    }
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run([command, sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plain_script_gives_spans(installed: str, tmp_path: Path):
    with receiving() as receiver:
        instrumented(SCRIPT, receiver, installed, tmp_path)
        (call,) = receiver.named("cold_call")  # five launches, one of them cold
        assert receiver.encodings == {"gzip"}
        phases = [span for span in receiver.named("phase") if span.parent_id == call.span_id]
        assert {"phase frontend", "phase ttir", "phase llir", "phase ptx", "phase cubin"} <= {p.name for p in phases}
        assert sum(p.end - p.start for p in phases) == call.end - call.start
        assert call.attributes["tritonprobe.tier"] == "compile"
        assert call.attributes["tritonprobe.reasons"] == ("new kernel",)
        assert call.scope == "tritonprobe"


def test_the_disabling_variable_gives_none(installed: str, tmp_path: Path):
    with receiving() as receiver:
        instrumented(SCRIPT, receiver, installed, tmp_path, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="tritonprobe")
        assert receiver.spans == []


def test_a_script_without_triton_never_loads_it(installed: str, tmp_path: Path):
    script = tmp_path / "plain.py"
    script.write_text("import sys\nassert not {'triton', 'torch'} & set(sys.modules), 'loaded'\n")
    with receiving() as receiver:
        instrumented(script, receiver, installed, tmp_path)
        assert receiver.named("cold_call") == []
