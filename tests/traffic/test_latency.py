"""Percentiles by nearest rank, and what a summary counts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.traffic.latency import INTERRUPTED, Outcome, Percentiles, Replay, Summary, nearest_rank

GOOD = Outcome(0, 0.0, 0.001, 512, 16, 16, 0.1, 0.01, 0.25, 200, None, None, "cmpl-0")


def test_percentiles_of_one_to_a_hundred():
    assert Percentiles.of(range(1, 101)) == Percentiles(100, 50, 95, 99, 100)


def test_few_values_say_so():
    """Of under a hundred values, the P99 is the largest; n stands beside it."""
    assert Percentiles.of([3.0, 1.0, 2.0]) == Percentiles(3, 2.0, 3.0, 3.0, 3.0)


def test_what_was_not_measured_is_not_counted_as_zero():
    assert Percentiles.of([None, 2.0, None]) == Percentiles(1, 2.0, 2.0, 2.0, 2.0)
    assert Percentiles.of([None]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_measured_value_that_enough_values_do_not_exceed(values, percent):
    found = nearest_rank(sorted(values), percent)
    enough = [value for value in values if sum(other <= value for other in values) * 100 >= percent * len(values)]
    assert found == min(enough)


def test_a_summary_counts_every_request_once():
    replay = Replay(
        requests=7,
        outcomes=(
            GOOD,
            replace(GOOD, index=1, tokens=3, ttft=0.2),
            replace(GOOD, index=2, error="http 503", detail="queue full", status=503, ttft=None, tokens=0),
            replace(GOOD, index=3, error="http 503", detail="another", status=503, ttft=None, tokens=0),
            replace(GOOD, index=4, error="timeout", ttft=9.0, tokens=5),
            replace(GOOD, index=5, error=INTERRUPTED, e2e=None, sent=1.0),
        ),
        clipped=1,
        wall=2.0,
        interrupted=True,
    )
    summary = Summary.of(replay)
    assert summary.completed + sum(count for _, count in summary.failed) + summary.interrupted + summary.not_sent == 7
    assert summary.failed == (("http 503", 2), ("timeout", 1))
    assert summary.examples == (("http 503", "queue full"),)
    assert (summary.interrupted, summary.not_sent, summary.short, summary.clipped) == (1, 1, 1, 1)
    assert summary.output_tokens == 19
    assert summary.ttft == Percentiles(2, 0.1, 0.2, 0.2, 0.2)  # of those that completed: not the timeout's
    assert summary.late is not None
    assert (summary.late.n, summary.late.max) == (6, 1.0)


def test_a_replay_without_answers_has_no_latencies():
    summary = Summary.of(Replay(5, (), 0, 0.5, interrupted=True))
    assert summary.ttft is summary.tpot is summary.e2e is summary.late is None
    assert summary.not_sent == 5
