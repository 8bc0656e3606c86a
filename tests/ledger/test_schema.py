"""The table of metrics: what Prometheus's own rules ask of names, and that no row is forgotten."""

from __future__ import annotations

import re

import pytest

from tritonprobe.ledger import METRICS, Metric, schema

ids = [metric.name for metric in METRICS]


def test_every_row_is_in_the_table() -> None:
    rows = [value for value in vars(schema).values() if isinstance(value, Metric)]
    assert sorted(row.name for row in rows) == sorted(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    assert "le" not in metric.labels
    assert not any(label.startswith("__") for label in metric.labels)


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_only_histograms_have_bounds_and_they_rise(metric: Metric) -> None:
    assert (metric.kind == "histogram") == bool(metric.bounds)
    assert list(metric.bounds) == sorted(set(metric.bounds))


@pytest.mark.parametrize("metric", METRICS, ids=ids)
def test_created_series_carry_the_metrics_labels(metric: Metric) -> None:
    assert all(len(labels) == len(metric.labels) for labels in metric.created)


def test_the_unit_is_what_the_name_ends_in() -> None:
    assert schema.COLD_SECONDS.unit == "seconds"
    assert schema.COLD_CALL_SECONDS.unit == "seconds"
    assert schema.LAUNCHES.unit == ""


def test_launches_are_read_before_the_calls_in_progress_and_lookups_after_them() -> None:
    # A call that counted its launch, but not yet its lookups, is then seen to be in progress.
    launches, progress, lookups = (METRICS.index(m) for m in (schema.LAUNCHES, schema.COLD_IN_PROGRESS, schema.LOOKUPS))
    assert launches < progress < lookups
    assert all(METRICS.index(m) < progress for m in (schema.WARMUPS, schema.TRIALS))


def test_ttft_reaches_the_longest_stalls_known() -> None:
    assert schema.TTFT_BOUNDS[-1] == schema.COLD_BOUNDS[-1] == 600
