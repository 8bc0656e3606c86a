"""Medians with intervals on numbers whose truth is known, and the order of measurements."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonprobe.proving import intervals
from tritonprobe.proving.intervals import Interval, base_first, differences, interval, ratios


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(intervals, "DRAWS", 300)


def test_an_interval_holds_the_known_truth_as_often_as_it_says(few_draws):
    """Noise with a long tail upwards, as a busy machine has it. With the seed fixed the count is always the same."""
    draw = random.Random(7)
    truth = 0.2 + math.log(2)  # the median of 0.2 plus an exponential of mean 1
    held = 0
    for experiment in range(200):
        found = interval([0.2 + draw.expovariate(1) for _ in range(60)], seed=experiment)
        held += found.low <= truth <= found.high
    assert 0.90 <= held / 200 <= 0.99


def test_more_values_give_a_narrower_interval(few_draws):
    draw = random.Random(3)
    values = [draw.gauss(10, 1) for _ in range(1600)]
    few, many = interval(values[:100], 0), interval(values, 0)
    assert (many.high - many.low) < (few.high - few.low) / 2


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30), st.integers(-50, 50), st.integers(1, 9))
def test_an_interval_moves_and_grows_with_its_values(values, shift, scale):
    plain = interval(values, seed=1)
    moved = interval([scale * value + shift for value in values], seed=1)
    assert plain.median == median(values)
    assert min(values) <= plain.low <= plain.high <= max(values)
    assert moved == Interval(*(scale * bound + shift for bound in (plain.median, plain.low, plain.high)))


def test_equal_values_leave_nothing_open():
    assert interval([1.25] * 5, seed=0) == Interval(1.25, 1.25, 1.25)


def test_no_values_have_no_median():
    with pytest.raises(ValueError, match="at least one"):
        interval([], seed=0)


def test_a_seed_repeats_an_interval():
    values = [float(value % 7) for value in range(40)]
    assert interval(values, seed=5) == interval(values, seed=5)


def test_farthest_from_looks_at_both_ends():
    assert Interval(1.0, 0.98, 1.01).farthest_from(1) == pytest.approx(0.02)
    assert Interval(1.0, 0.99, 1.05).farthest_from(1) == pytest.approx(0.05)


def test_differences_and_ratios_are_of_pairs():
    assert differences([1.0, 4.0], [2.0, 3.0]) == [1.0, -1.0]
    assert ratios([1.0, 4.0], [2.0, 3.0]) == [2.0, 0.75]
    with pytest.raises(ValueError, match="shorter"):
        differences([1.0, 2.0], [1.0])


@given(st.integers(0, 300), st.integers())
def test_half_of_the_pairs_begin_with_the_base(pairs, seed):
    order = base_first(pairs, seed)
    assert len(order) == pairs
    assert sum(order) == (pairs + 1) // 2


def test_the_order_is_random_and_repeatable():
    assert base_first(100, 1) == base_first(100, 1) != base_first(100, 2)
    assert base_first(100, 1) != sorted(base_first(100, 1))
