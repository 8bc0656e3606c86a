"""The ledger as OpenTelemetry metrics: a second exporter of the same numbers.

Counters and gauges are read from the ledger when the SDK collects; times are recorded as their events come, since
OpenTelemetry has no histogram that is read. Names are Prometheus's with dots: ``tritonprobe.launches``. Requests also
go into OpenTelemetry's own ``gen_ai.server.*``, with its bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation

from tritonprobe._version import __version__
from tritonprobe.export.otel import conventions as names
from tritonprobe.ledger import METRICS, Family, Metric, Readable, Sample, schema
from tritonprobe.model import ColdCall, Event, RequestCost

_NS = 1e9
FRESH = 1.0
"""Seconds that one reading of the ledger serves: the SDK asks each instrument for itself, one after the other."""

# Bounds that OpenTelemetry's semantic conventions give.
_TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_DURATION_BOUNDS = tuple(0.01 * 2**i for i in range(14))


class Metrics:
    """Registers every instrument with `provider`; made for `Bus.subscribe`, which feeds the histograms.

    `close` makes them silent: OpenTelemetry cannot take an instrument back.
    """

    def __init__(self, provider: MeterProvider, ledger: Readable) -> None:
        self._ledger = ledger
        self._read_at = -FRESH
        self._families: dict[str, Family] = {}
        self._open = True
        meter = provider.get_meter(names.SCOPE, __version__)
        for metric in METRICS:
            if metric.kind == "counter":
                meter.create_observable_counter(name_of(metric), [self._reader(metric)], unit_of(metric), metric.help)
            elif metric.kind in ("gauge", "info"):
                meter.create_observable_gauge(name_of(metric), [self._reader(metric)], unit_of(metric), metric.help)

        def histogram(name: str, help: str, bounds: Iterable[float]) -> Histogram:  # noqa: A002  # what it is
            return meter.create_histogram(name, "s", help, explicit_bucket_boundaries_advisory=list(bounds))

        self._ttft = histogram("gen_ai.server.time_to_first_token", "Time to generate the first token.", _TTFT_BOUNDS)
        self._tpot = histogram(
            "gen_ai.server.time_per_output_token", "Time per output token after the first.", _TPOT_BOUNDS
        )
        self._duration = histogram("gen_ai.server.request.duration", "A request from arrival to end.", _DURATION_BOUNDS)
        self._cold = histogram(name_of(schema.COLD_CALL_SECONDS), schema.COLD_CALL_SECONDS.help, schema.COLD_BOUNDS)
        self._exposure = histogram(name_of(schema.EXPOSURE), schema.EXPOSURE.help, schema.TTFT_BOUNDS)

    def __call__(self, event: Event) -> None:
        if isinstance(event, ColdCall):
            self._cold.record(event.wall_ns / _NS, {"tier": event.tier})
        elif isinstance(event, RequestCost):
            self._request(event)

    def close(self) -> None:
        self._open = False

    def _request(self, cost: RequestCost) -> None:
        attributes = {names.OPERATION: "text_completion", names.PROVIDER: names.SCOPE, names.MODEL: cost.model}
        whole = attributes if cost.error is None else {**attributes, names.ERROR_TYPE: cost.error}
        self._duration.record((cost.end_ns - cost.start_ns) / _NS, whole)
        if cost.ttft_ns is not None:
            self._ttft.record(cost.ttft_ns / _NS, attributes)
        if cost.tpot_ns is not None:
            self._tpot.record(cost.tpot_ns / _NS, attributes)
        parts = [("before_first_token", cost.before)]
        if cost.first_token_ns is not None:
            parts.append(("after_first_token", cost.after))
        for phase, exposure in parts:
            self._exposure.record(exposure.in_batch_ns / _NS, {"phase": phase, "waited": "in_batch"})
            self._exposure.record(exposure.queued_ns / _NS, {"phase": phase, "waited": "queued"})

    def _reader(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> list[Observation]:  # noqa: ARG001  # what OpenTelemetry passes
            family = self._family(metric)
            if family is None:
                return []
            return [
                Observation(sample.value, dict(zip(metric.labels, sample.labels, strict=True)))
                for sample in family.samples
                if isinstance(sample, Sample)
            ]

        return read

    def _family(self, metric: Metric) -> Family | None:
        if not self._open:
            return None
        now = time.monotonic()
        if now - self._read_at >= FRESH:
            self._families = {family.metric.name: family for family in self._ledger.collect()}
            self._read_at = now
        return self._families.get(metric.name)


def name_of(metric: Metric) -> str:
    """``tritonprobe.cold_call.seconds``: without what a unit or Prometheus adds."""
    return f"tritonprobe.{metric.name.removesuffix('_total').removesuffix('_seconds')}"


def unit_of(metric: Metric) -> str:
    """In UCUM, as OpenTelemetry has it."""
    return "s" if metric.unit == "seconds" else ""
