"""A ledger as Prometheus sees it: both text formats, read back by the client's own parsers and by promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import require_tool
from tritonprobe.export.prometheus import Collector, render
from tritonprobe.ledger import METRICS, MemoryLedger, schema
from tritonprobe.ledger.schema import DISTRIBUTIONS

# What Prometheus 2.42 sends, and what a browser does.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def full_ledger() -> MemoryLedger:
    """Something in every family of the schema."""
    ledger = MemoryLedger()
    for metric in METRICS:
        labels = metric.created[0] if metric.created else tuple(f"a {label}" for label in metric.labels)
        if metric.kind in DISTRIBUTIONS:
            ledger.observe(metric, labels, 0.3)
        elif metric.kind == "counter":
            ledger.add(metric, labels, 3)
        else:
            ledger.set(metric, labels, 1.0 if metric.kind == "info" else 1790000000.25)
    return ledger


def samples(families: Iterable[Metric]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families:
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series
            series[labels] = sample.value
    return found


def text_samples(ledger: MemoryLedger) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return samples(parse_text(render(ledger, None)[1].decode()))


def test_promtool_finds_nothing_to_say() -> None:
    promtool = require_tool("promtool")
    _, body = render(full_ledger(), None)
    checked = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.parametrize("accept", [None, PROMETHEUS], ids=["text", "openmetrics"])
def test_every_family_of_the_schema_is_there_with_its_type_and_help(accept: str | None) -> None:
    parse = parse_text if accept is None else parse_openmetrics
    families = {family.name: family for family in parse(render(full_ledger(), accept)[1].decode())}
    for metric in METRICS:
        name = f"tritonprobe_{metric.name}".removesuffix("_total")
        kind = metric.kind
        if kind == "info":
            kind, name = ("gauge", name) if accept is None else ("info", name.removesuffix("_info"))
        assert families.pop(name).type == kind, metric.name
    assert families == {}


def test_openmetrics_says_the_unit_and_ends_properly() -> None:
    content_type, body = render(full_ledger(), PROMETHEUS)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"\n# EOF\n")
    units = {family.name: family.unit for family in parse_openmetrics(body.decode())}
    assert units["tritonprobe_cold_seconds"] == "seconds"
    assert units["tritonprobe_launches"] == ""


@pytest.mark.parametrize(
    "accept",
    [None, "", BROWSER, "*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0.2,text/plain;q=0.9"],
)
def test_who_does_not_prefer_openmetrics_gets_the_old_text(accept: str | None) -> None:
    content_type, body = render(full_ledger(), accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body


@pytest.mark.parametrize("accept", [None, PROMETHEUS], ids=["text", "openmetrics"])
def test_there_are_no_created_series(accept: str | None) -> None:
    assert b"_created" not in render(full_ledger(), accept)[1]


def test_info_is_one_sample_of_the_value_1() -> None:
    ledger = MemoryLedger()
    labels = ("0.1", "3.6.0", "compile-only:cuda:90", "binder")
    ledger.set(schema.INFO, labels, 1.0)
    expected = {tuple(sorted(zip(schema.INFO.labels, labels, strict=True))): 1.0}
    assert text_samples(ledger)["tritonprobe_info"] == expected
    openmetrics = samples(parse_openmetrics(render(ledger, PROMETHEUS)[1].decode()))
    assert openmetrics["tritonprobe_info"] == expected


def test_an_empty_ledger_shows_only_what_is_created_at_0() -> None:
    families = {family.name for family in Collector(MemoryLedger()).collect()}
    assert families == {f"tritonprobe_{m.name}".removesuffix("_total") for m in METRICS if m.created}


def test_histograms_are_cumulated_and_their_count_is_the_last_bucket() -> None:
    ledger = MemoryLedger()
    for seconds in (0.0005, 0.001, 0.3, 700.0):
        ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), seconds)
    found = text_samples(ledger)
    buckets = {
        dict(labels)["le"]: value
        for labels, value in found["tritonprobe_cold_call_seconds_bucket"].items()
        if dict(labels)["tier"] == "compile"
    }
    assert buckets["0.001"] == 2
    assert buckets["0.2"] == 2
    assert buckets["0.5"] == 3
    assert buckets["600.0"] == 3
    assert buckets["+Inf"] == 4
    assert list(buckets.values()) == sorted(buckets.values())
    compiled = (("tier", "compile"),)
    assert found["tritonprobe_cold_call_seconds_count"][compiled] == 4
    assert found["tritonprobe_cold_call_seconds_sum"][compiled] == 0.0005 + 0.001 + 0.3 + 700


def test_a_registry_takes_the_collector_and_refuses_a_second_one() -> None:
    registry = CollectorRegistry()
    ledger = full_ledger()
    registry.register(Collector(ledger))
    assert generate_latest(registry) == render(ledger, None)[1]
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector(ledger))


labels = st.text(max_size=20) | st.sampled_from(
    ['say "hi"', "a\nb", "back\\slash", "\\n", '"', "{}=,", "é", "\x00", " "]
)


@settings(deadline=None)  # time is not what this is about
@given(labels, labels)
def test_label_values_survive_the_way_to_prometheus(kernel: str, bucket: str) -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, (kernel, bucket), 2)
    expected = {(("bucket", bucket), ("kernel", kernel)): 2.0}
    assert text_samples(ledger)["tritonprobe_launches_total"] == expected
    openmetrics = samples(parse_openmetrics(render(ledger, PROMETHEUS)[1].decode()))
    assert openmetrics["tritonprobe_launches_total"] == expected
