"""The two formats are, byte for byte, what prometheus_client writes for the same ledger."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from tritonprobe.export import exposition
from tritonprobe.export.prometheus import Collector
from tritonprobe.ledger import METRICS, Metric, Readable
from tritonprobe.ledger.schema import DISTRIBUTIONS
from tritonprobe.ledger.store import Exemplar, Family, HistogramSample, Sample, Traced

LABEL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a\\b", 'a"b', "a\nb", "50%", "%s"]
)
NUMBER = st.floats() | st.integers(0, 10**12).map(float)


TRACED = st.none() | st.builds(
    Traced,
    value=st.floats(min_value=0) | st.sampled_from(sorted({bound for metric in METRICS for bound in metric.bounds})),
    unix_ns=st.integers(0, 2**62),
    exemplar=st.builds(
        Exemplar,
        trace_id=st.integers(1, 2**128 - 1).map("{:032x}".format),
        span_id=st.integers(1, 2**64 - 1).map("{:016x}".format),
    ),
)


class Fixed:
    """Something to read that says what it was told to."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


@st.composite
def families(draw: st.DrawFn) -> list[Family]:
    found = []
    for metric in draw(st.lists(st.sampled_from(METRICS), unique_by=lambda m: m.name, max_size=5)):
        labels = draw(st.lists(st.tuples(*[LABEL] * len(metric.labels)), unique=True, min_size=1, max_size=3))
        found.append(Family(metric, [draw(sample(metric, values)) for values in labels]))
    return found


def sample(metric: Metric, labels: tuple[str, ...]) -> st.SearchStrategy[Sample | HistogramSample]:
    if metric.kind == "info":
        return st.just(Sample(labels, 1.0))
    if metric.kind not in DISTRIBUTIONS:
        return NUMBER.map(lambda value: Sample(labels, value))
    counts = st.lists(st.integers(0, 10**9).map(float), min_size=metric.slots - 1, max_size=metric.slots - 1)
    sums = st.floats(allow_nan=False, allow_infinity=False)
    exemplars = TRACED if metric.kind == "histogram" else st.none()
    return st.builds(HistogramSample, st.just(labels), counts.map(tuple), sums, exemplars)


@given(families())
@settings(max_examples=200, deadline=None)
def test_text_is_what_the_client_writes(found: list[Family]) -> None:
    assert exposition.text(found) == generate_latest(collector(found))


@given(families())
@settings(max_examples=200, deadline=None)
def test_openmetrics_is_what_the_client_writes(found: list[Family]) -> None:
    assert exposition.openmetrics(found) == generate_openmetrics(collector(found))


def collector(found: list[Family]) -> Collector:
    readable: Readable = Fixed(found)  # type: ignore[assignment]  # a list is an iterator's worth
    return Collector(readable)


def test_numbers_that_are_none_are_said_as_such() -> None:
    gauge = next(metric for metric in METRICS if metric.kind == "gauge" and not metric.labels)
    body = exposition.text([Family(gauge, [Sample((), math.nan)])]).decode()
    assert body.endswith(" NaN\n")
