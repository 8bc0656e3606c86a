"""A client's trace through ``tritonprobe run -- opentelemetry-instrument vllm serve``, to a real OTLP receiver.

The engine core compiles, in a process that the client's header never reached but by vLLM's own request. Skipped where
vLLM or OpenTelemetry's distribution is not; takes half a minute.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("opentelemetry.distro", reason="opentelemetry-distro is not installed")

from tests.adapter.engines.test_real_vllm_server import HOLLOW, write_model
from tests.export.otel.receiver import Receiver, receiving
from tests.export.otel.test_instrumentor import installed  # noqa: F401  # a fixture
from tests.gpu.vllm_engine import MODEL, Server

pytestmark = pytest.mark.slow

TRACE, CALLER = f"{0xABCDEF:032x}", f"{0x123456:016x}"


class Traced(Server):
    """vLLM with its own tracing off, and OpenTelemetry's zero-code instrumentation on."""

    more: dict[str, str]

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "tritonprobe", "run", "--port", "0", "--dir", str(self.ledger), "--"),
            *(sys.executable, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()"),
            *(*self.engine, "serve", str(self.folder / "model"), "--served-model-name", MODEL),
            *("--load-format", "dummy", "--enforce-eager", "--max-model-len", "2048", "--no-enable-prefix-caching"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.more}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def server(
    receiver: Receiver,
    installed: str,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("traces")
    made = Traced(folder, folder, "eager", 18_241, True, (sys.executable, "-m", "vllm.entrypoints.cli.main"), "traced")
    made.more = {
        "PYTHONPATH": os.pathsep.join([str(HOLLOW), installed, os.environ.get("PYTHONPATH", "")]),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    write_model(folder / "model")
    with made:
        yield made


def test_the_requests_span_is_the_callers_child_and_holds_the_compile_it_stood_behind(
    server: Server, receiver: Receiver
) -> None:
    status = ask(server, 900, f"00-{TRACE}-{CALLER}-01")
    assert status == 200, server.tail()
    receiver.wait_for(lambda spans: any(s.name == "tritonprobe.request" and s.trace_id == TRACE for s in spans))
    mine = [span for span in receiver.spans if span.trace_id == TRACE]
    (request,) = [span for span in mine if span.name == "tritonprobe.request"]
    assert request.parent_id == CALLER
    cold = [span for span in mine if span.name.startswith("cold_call model_kernel")]
    assert len(cold) == 1
    assert cold[0].parent_id == CALLER
    assert cold[0].attributes["tritonprobe.waiting"] == 1
    assert request.start <= cold[0].start <= cold[0].end <= request.end
    phases = {span.name for span in mine if span.parent_id == cold[0].span_id}
    assert {"phase frontend", "phase module_load"} <= phases


def test_a_client_that_does_not_sample_has_no_span(server: Server, receiver: Receiver) -> None:
    unsampled, later = f"{0xBAD:032x}", f"{0xFEED:032x}"
    assert ask(server, 7, f"00-{unsampled}-{CALLER}-00") == 200
    assert ask(server, 7, f"00-{later}-{CALLER}-01") == 200
    receiver.wait_for(lambda spans: any(s.trace_id == later for s in spans))
    assert all(span.trace_id != unsampled for span in receiver.spans)


def ask(server: Server, length: int, traceparent: str) -> int:
    body: dict[str, Any] = {"model": MODEL, "prompt": [5] * length, "max_tokens": 4, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", "traceparent": traceparent}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    return response.status
