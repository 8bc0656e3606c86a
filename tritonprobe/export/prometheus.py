"""A ledger in Prometheus's words: a collector for any registry, and the two text formats. Knows prometheus_client.

``prometheus_client.REGISTRY.register(Collector(ledger))`` adds the families to what a program exports already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import core as client

from tritonprobe.export import exposition
from tritonprobe.export.accept import preferred
from tritonprobe.ledger import METRICS, Family, HistogramSample, Metric, Readable, Traced
from tritonprobe.ledger.schema import PREFIX

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"


class Collector:
    """Reads `ledger` at each scrape; a `prometheus_client` registry takes it as it is.

    No `_created` series: a server that stores them as ordinary ones would double the count.
    """

    def __init__(self, ledger: Readable) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[client.Metric]:
        for family in self._ledger.collect():
            yield _FILL[family.metric.kind](family)

    def describe(self) -> Iterator[client.Metric]:
        """Every family there can be, empty, so that a registry notices a second collector at once."""
        for metric in METRICS:
            yield _FILL[metric.kind](Family(metric, ()))


def render(ledger: Readable, accept: str | None) -> tuple[str, bytes]:
    """The content type and body of one scrape: OpenMetrics 1.0 for those who prefer it to text, else text 0.0.4."""
    if preferred(accept, (OPENMETRICS, "text/plain")) == OPENMETRICS:
        return f"{OPENMETRICS}; version=1.0.0; charset=utf-8", exposition.openmetrics(ledger.collect())
    return TEXT, exposition.text(ledger.collect())


def _name(metric: Metric) -> str:
    return PREFIX + metric.name


def _counter(family: Family) -> client.Metric:
    metric = family.metric
    found = client.CounterMetricFamily(_name(metric), metric.help, labels=metric.labels, unit=metric.unit)
    _values(family, found)
    return found


def _gauge(family: Family) -> client.Metric:
    metric = family.metric
    found = client.GaugeMetricFamily(_name(metric), metric.help, labels=metric.labels, unit=metric.unit)
    _values(family, found)
    return found


def _info(family: Family) -> client.Metric:
    # The client appends `_info` to an info family's samples; what it is to be told is the name without it.
    metric = family.metric
    found = client.InfoMetricFamily(_name(metric).removesuffix("_info"), metric.help)
    for sample in family.samples:
        found.add_metric((), dict(zip(metric.labels, sample.labels, strict=True)))
    return found


def _values(family: Family, found: client.CounterMetricFamily | client.GaugeMetricFamily) -> None:
    for sample in family.samples:
        if not isinstance(sample, HistogramSample):
            found.add_metric(sample.labels, sample.value)


def _histogram(family: Family) -> client.Metric:
    metric = family.metric
    found = client.HistogramMetricFamily(_name(metric), metric.help, labels=metric.labels, unit=metric.unit)
    edges = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
    for sample in family.samples:
        if isinstance(sample, HistogramSample):
            buckets: list[tuple[Any, ...]] = list(zip(edges, accumulate(sample.counts), strict=True))
            if sample.traced is not None:
                place = bisect_left(metric.bounds, sample.traced.value)
                buckets[place] = (*buckets[place], _exemplar(sample.traced))
            found.add_metric(sample.labels, buckets, sample.sum)
    return found


def _exemplar(traced: Traced) -> client.Exemplar:
    ids = traced.exemplar
    return client.Exemplar({"trace_id": ids.trace_id, "span_id": ids.span_id}, traced.value, traced.unix_ns / 1e9)


def _summary(family: Family) -> client.Metric:
    metric = family.metric
    found = client.SummaryMetricFamily(_name(metric), metric.help, labels=metric.labels, unit=metric.unit)
    for sample in family.samples:
        if isinstance(sample, HistogramSample):
            found.add_metric(sample.labels, count_value=int(sum(sample.counts)), sum_value=sample.sum)
    return found


_FILL: dict[str, Callable[[Family], client.Metric]] = {
    "counter": _counter,
    "gauge": _gauge,
    "histogram": _histogram,
    "info": _info,
    "summary": _summary,
}
