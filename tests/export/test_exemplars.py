"""From a span to Prometheus's exemplars: by the ledger of one process, and by that of a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.export.conftest import Probed, Prometheus
from tritonprobe.bus import Bus
from tritonprobe.export.http import serve
from tritonprobe.export.prometheus import OPENMETRICS, render
from tritonprobe.ledger import DirectoryReader, Exemplar, FileLedger, Ledger, MemoryLedger, Recorder, schema
from tritonprobe.requests import Requests

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TTFT = "tritonprobe_time_to_first_token_seconds"


def served(ledger: Ledger, probed: Probed, seconds: float, trace_id: str) -> None:
    """A request of a server that was sent a `traceparent`, on a clock that a test turns."""
    now = [0]
    bus = Bus()
    bus.subscribe(Recorder(ledger, probed.settings, lambda: True))
    with Requests(bus, clock=lambda: now[0]).request(model="m", traceparent=f"00-{trace_id}-{SPAN}-01") as request:
        now[0] = int(seconds * 1e9)
        request.token()


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_prometheus_finds_the_trace_of_a_slow_first_token(
    where: str, probed: Probed, prometheus_server: Callable[[Sequence[str]], Prometheus], tmp_path: Path
) -> None:
    counting: Ledger = MemoryLedger()
    probed.ledger = counting
    if where == "directory":
        folder = tmp_path / "ledger"
        folder.mkdir()
        counting = FileLedger(folder)
        probed.ledger = DirectoryReader(folder)  # type: ignore[assignment]  # what is served is only read
    served(counting, probed, 3.0, TRACE)
    for number in range(40):  # before anybody has read of the slow one
        served(counting, probed, 0.0005, f"{number + 1:032x}")
    with serve(probed) as up:
        prometheus = prometheus_server([up.url])
        prometheus.wait_for_scrapes(f'{TTFT}_bucket{{le="5.0"}}', 2)
        (found,) = prometheus.query_exemplars(f"{TTFT}_bucket")
        assert found["labels"] == {"trace_id": TRACE, "span_id": SPAN}
        assert float(found["value"]) == 3.0
        assert (found["series"]["le"], found["series"]["model"]) == ("5.0", "m")
        slower = TRACE[::-1]
        served(counting, probed, 9.0, slower)
        prometheus.wait_for(f'{TTFT}_bucket{{le="10.0"}}', lambda now: set(now.values()) == {42})
        quantile = f"histogram_quantile(0.99, sum by (le) (rate({TTFT}_bucket[5m])))"  # as boards ask
        traces = {one["labels"]["trace_id"]: one["series"]["le"] for one in prometheus.query_exemplars(quantile)}
        assert traces == {TRACE: "5.0", slower: "10.0"}
        assert prometheus.query("up") == {(): 1}


@pytest.mark.parametrize(
    ("seconds", "le"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.002"), (600.0, "600.0"), (601.0, "+Inf")]
)
def test_it_stands_on_the_bucket_that_its_value_falls_into(seconds: float, le: str) -> None:
    ledger = MemoryLedger()
    ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), seconds, Exemplar(TRACE, SPAN))
    body = render(ledger, OPENMETRICS)[1].decode()
    samples = [sample for family in parse_openmetrics(body) for sample in family.samples if sample.exemplar]
    (sample,) = samples
    assert sample.name == "tritonprobe_cold_call_seconds_bucket"
    assert sample.labels == {"tier": "disk", "le": le}
    assert sample.exemplar is not None
    assert sample.exemplar.labels == {"trace_id": TRACE, "span_id": SPAN}
    assert sample.exemplar.value == seconds
    assert sample.value == 1


def test_the_old_text_has_none() -> None:
    ledger = MemoryLedger()
    before = render(ledger, None)[1]
    ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.0, Exemplar(TRACE, SPAN))
    after = render(ledger, None)[1]
    assert before != after
    assert TRACE.encode() not in after
