"""The ledger through a real OTel SDK: the same numbers as in Prometheus, under OpenTelemetry's names and bounds."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.ledger.test_record import cold_call, request
from tritonprobe.bus import Bus
from tritonprobe.export.otel import metrics
from tritonprobe.export.otel.metrics import Metrics, name_of
from tritonprobe.ledger import METRICS, MemoryLedger, Recorder, schema
from tritonprobe.model import Exposure
from tritonprobe.settings import Settings

MS = 1_000_000


class Metered:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.ledger = MemoryLedger()
        self.bus = Bus()
        self.bus.subscribe(Recorder(self.ledger, Settings(), lambda: True))
        self.metrics = Metrics(MeterProvider([self.reader]), self.ledger)
        self.bus.subscribe(self.metrics)

    def read(self) -> dict[str, Any]:
        self.metrics._read_at = -metrics.FRESH  # as if the next period had come
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}


def points(metric: Any) -> dict[tuple[tuple[str, object], ...], Any]:
    return {tuple(sorted(point.attributes.items())): point for point in metric.data.data_points}


def test_counters_and_gauges_are_the_ledgers():
    metered = Metered()
    metered.ledger.cell(schema.LAUNCHES, ("softmax", "N=8"))[0] += 5
    metered.ledger.set(schema.READY, (), 12.5)
    metered.bus.publish(cold_call())
    found = metered.read()
    launches = found["tritonprobe.launches"]
    assert points(launches)[(("bucket", "N=8"), ("kernel", "softmax"))].value == 5
    assert launches.data.is_monotonic
    assert points(found["tritonprobe.ready_timestamp"])[()].value == 12.5
    assert found["tritonprobe.cold"].unit == "s"
    seconds = {dict(key)["phase"]: point.value for key, point in points(found["tritonprobe.cold"]).items()}
    assert seconds == {"frontend": 0.01, "ptx": 0.025, "other": 0.005}
    metered.ledger.add(schema.LAUNCHES, ("softmax", "N=8"))
    assert points(metered.read()["tritonprobe.launches"])[(("bucket", "N=8"), ("kernel", "softmax"))].value == 6


def test_requests_are_in_opentelemetrys_own_histograms():
    metered = Metered()
    metered.bus.publish(request(before=Exposure(in_batch_ns=500 * MS)))  # TTFT 2 s, then 1 s a token, 5 s in all
    metered.bus.publish(request(first_token_ns=None, error="Cancelled"))
    found = metered.read()
    (ttft,) = points(found["gen_ai.server.time_to_first_token"]).values()
    assert (ttft.count, ttft.sum) == (1, 2.0)
    assert tuple(ttft.explicit_bounds) == (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
    )  # fmt: skip
    assert dict(ttft.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tritonprobe",
        "gen_ai.request.model": "llama",
    }
    (tpot,) = points(found["gen_ai.server.time_per_output_token"]).values()
    assert (tpot.count, tpot.sum) == (1, 1.0)
    duration = {
        dict(key).get("error.type"): p.sum for key, p in points(found["gen_ai.server.request.duration"]).items()
    }
    assert duration == {None: 5.0, "Cancelled": 5.0}
    exposure = points(found["tritonprobe.request_exposure"])
    assert exposure[(("phase", "before_first_token"), ("waited", "in_batch"))].sum == 0.5
    assert exposure[(("phase", "before_first_token"), ("waited", "in_batch"))].count == 2


def test_cold_calls_are_a_histogram():
    metered = Metered()
    metered.bus.publish(cold_call())
    (point,) = points(metered.read()["tritonprobe.cold_call"]).values()
    assert (point.count, point.sum, dict(point.attributes)) == (1, 0.04, {"tier": "compile"})
    assert tuple(point.explicit_bounds) == schema.COLD_BOUNDS


def test_no_two_instruments_share_a_name():
    names = [name_of(metric) for metric in METRICS]
    assert len(set(names)) == len(names)


def test_one_reading_serves_one_collection():
    metered = Metered()
    read = []

    class Counted(MemoryLedger):
        def collect(self) -> Any:
            read.append(1)
            return super().collect()

    metered.metrics._ledger = Counted()
    metered.read()
    assert len(read) == 1


def test_closed_it_is_silent():
    metered = Metered()
    metered.ledger.add(schema.LAUNCHES, ("softmax", "N=8"))
    metered.metrics.close()
    assert metered.read() == {}
