"""From Prometheus's P99 to the compile that made it: the example server, a real Prometheus, a real OTLP receiver."""

# ruff: noqa: E402  # what may not be installed is asked for first

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.conftest import require_module

require_module("opentelemetry.distro")
require_module("opentelemetry.exporter.otlp.proto.http")

from tests.examples.test_command import TINY
from tests.export.conftest import Prometheus, prometheus_server  # noqa: F401
from tests.export.otel.receiver import Receiver, receiving
from tests.export.otel.test_instrumentor import installed  # noqa: F401

ROOT = Path(__file__).parents[3]
TTFT = "tritonprobe_time_to_first_token_seconds"
P99 = f"histogram_quantile(0.99, sum by (le) ({TTFT}_bucket))"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def url(receiver: Receiver, installed: str, tmp_path: Path) -> Iterator[str]:  # noqa: F811
    """The example server, cold, under `opentelemetry-instrument`."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([installed, os.environ.get("PYTHONPATH", str(ROOT))]),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    command: list[str | Path] = [
        Path(sys.executable).with_name("opentelemetry-instrument"),
        sys.executable,
        "-m",
        "examples.llm_server",
    ]
    flags = ["--port", "0", "--device", "compile-only:cuda:90", "--no-warmup", *TINY]
    with subprocess.Popen([*command, *flags], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_the_trace_of_the_p99_holds_the_compile_with_its_phases(
    url: str,
    receiver: Receiver,
    prometheus_server: Callable[[Sequence[str]], Prometheus],  # noqa: F811
):
    sent: list[tuple[str, str]] = []

    def complete() -> dict[str, object]:
        trace, span = secrets.token_hex(16), secrets.token_hex(8)
        sent.append((trace, span))
        headers = {"traceparent": f"00-{trace}-{span}-01"}
        found = httpx.post(
            f"{url}/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2}, headers=headers, timeout=120
        )
        assert found.status_code == 200
        cost: dict[str, object] = found.json()["tritonprobe"]
        return cost

    cold = complete()  # compiles every kernel
    prometheus = prometheus_server([url])
    prometheus.wait_for_scrapes(f"{TTFT}_count", 2)
    for _ in range(30):
        complete()
    prometheus.wait_for(f"{TTFT}_count", lambda now: set(now.values()) == {31})

    (p99,) = prometheus.query(P99).values()
    exemplars = {e["labels"]["trace_id"]: (float(e["value"]), e) for e in prometheus.query_exemplars(P99)}
    slow = [trace for trace, (seconds, e) in exemplars.items() if p99 <= float(e["series"]["le"]) and seconds > 0.5]
    assert slow == [sent[0][0]]  # of all traces that Prometheus offers, this one is in the bucket of the P99
    assert exemplars[slow[0]][0] == pytest.approx(cold["ttft_seconds"])

    receiver.wait_for(lambda spans: sum(span.name == "tritonprobe.request" for span in spans) == 31)
    trace = [span for span in receiver.spans if span.trace_id == slow[0]]
    (request,) = [span for span in trace if span.name == "tritonprobe.request"]
    assert request.parent_id == sent[0][1]
    calls = [span for span in trace if span.name.startswith("cold_call")]
    assert any(call.name.endswith("rmsnorm_kernel") for call in calls), {call.name for call in calls}
    for call in calls:
        assert call.parent_id == sent[0][1]
        phases = [span for span in trace if span.parent_id == call.span_id]
        assert sum(phase.end - phase.start for phase in phases) == call.end - call.start
    compiled = [call for call in calls if call.attributes["tritonprobe.tier"] == "compile"]
    assert compiled
    for call in compiled:
        names = {span.name for span in trace if span.parent_id == call.span_id}
        assert {"phase frontend", "phase llir", "phase ptx", "phase cubin"} <= names
    # What the request says it stood behind is what these spans cover of its life, phase by phase, and what telling of
    # them took, which is under `other` and in no span.
    covered = Counter[str]()
    for call in calls:
        assert request.start <= call.start <= call.end <= request.end
        for phase in (span for span in trace if span.parent_id == call.span_id):
            covered[phase.name.removeprefix("phase ")] += phase.end - phase.start
    said = {
        name.removeprefix("tritonprobe.exposure.phase."): float(str(value))
        for name, value in request.attributes.items()
        if name.startswith("tritonprobe.exposure.phase.")
    }
    assert said.keys() == covered.keys() | {"other"}
    for name, seconds in said.items():
        if name == "other":
            assert covered[name] / 1e9 - 0.005 <= seconds <= covered[name] / 1e9 + 0.02 * len(calls)
        else:
            assert seconds == pytest.approx(covered[name] / 1e9, abs=0.005), name
    exposed = sum(
        float(str(request.attributes[f"tritonprobe.exposure.{when}.{waited}"]))
        for when in ("before_first_token", "after_first_token")
        for waited in ("in_batch", "queued")
    )
    assert exposed == pytest.approx(sum(said.values()), abs=0.005)
