"""Queries are made from the metric table: what is not in it cannot be asked for."""

from __future__ import annotations

import pytest

from grafana.queries import INTERVAL, RANGE, counted, quantile, rate, ratio, series, total
from tritonprobe.ledger import schema


def test_series_are_narrowed_by_the_variables_that_fit() -> None:
    assert series(schema.LAUNCHES) == (
        'tritonprobe_launches_total{job=~"$job", instance=~"$instance", kernel=~"$kernel"}'
    )
    assert series(schema.TTFT, part="count") == (
        'tritonprobe_time_to_first_token_seconds_count{job=~"$job", instance=~"$instance", model=~"$model"}'
    )
    assert series(schema.AFTER_READY, 'tier!="memory"') == (
        'tritonprobe_cold_calls_after_ready_total{job=~"$job", instance=~"$instance", tier!="memory"}'
    )


def test_rates_are_summed_over_what_is_not_asked_for() -> None:
    narrowed = 'tritonprobe_launches_total{job=~"$job", instance=~"$instance", kernel=~"$kernel"}'
    assert rate(schema.LAUNCHES, ("kernel",)) == f"sum by (kernel) (rate({narrowed}[$__rate_interval]))"
    assert rate(schema.LAUNCHES, ()) == f"sum(rate({narrowed}[$__rate_interval]))"


def test_a_counter_that_exists_from_the_start_needs_no_more_than_increase() -> None:
    found = series(schema.AFTER_READY)
    assert counted(schema.AFTER_READY, ("tier",), window=RANGE) == f"sum by (tier) (increase({found}[$__range]))"


def test_a_counter_that_is_born_with_an_event_counts_it() -> None:
    found = series(schema.ERRORS)
    assert counted(schema.ERRORS, ("part",), window=RANGE) == (
        f"sum by (part) (last_over_time({found}[$__range]) unless {found} offset $__range "
        f"or increase({found}[$__range]))"
    )


def test_quantiles_and_ratios_of_nothing_are_absent() -> None:
    found = series(schema.EXPOSURE, part="bucket")
    assert quantile(0.9, schema.EXPOSURE, window=INTERVAL) == (
        f"histogram_quantile(0.9, sum by (le) (increase({found}[$__rate_interval]))) >= 0"
    )
    assert ratio("a", "b") == "a / (b > 0)"


@pytest.mark.parametrize(
    ("ask", "because"),
    [
        (lambda: series(schema.LAUNCHES, 'tier="disk"'), "launches_total has no label tier"),
        (lambda: series(schema.LAUNCHES, "kernel"), "kernel is no matcher"),
        (lambda: series(schema.LAUNCHES, part="bucket"), "is a counter and has no part bucket"),
        (lambda: series(schema.TTFT), "is a histogram and has no part None"),
        (lambda: series(schema.TTFT, 'le="0.3"', part="bucket"), "0.3 is no bound"),
        (lambda: series(schema.TTFT, 'le="1"', part="bucket"), "1 is no bound"),  # it is exposed as 1.0
        (lambda: series(schema.TTFT, 'le="0.25"', part="count"), "has no label le"),
        (lambda: total(schema.LAUNCHES, ("phase",), "x"), "launches_total has no label phase"),
    ],
)
def test_what_does_not_exist_is_refused(ask, because) -> None:
    with pytest.raises(ValueError, match=because):
        ask()
