"""Quantiles between the ticks of a clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tritonprobe.gpu.quantiles import quantile

times = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=200).map(sorted)
TICK = 32.0


@given(times, st.floats(0.0, 1.0))
def test_a_quantile_lies_among_the_values(ordered: list[float], q: float) -> None:
    assert ordered[0] - 1e-6 <= quantile(ordered, q) <= ordered[-1] + 1e-6


@given(times)
def test_the_ends_are_the_ends(ordered: list[float]) -> None:
    assert (quantile(ordered, 0.0), quantile(ordered, 1.0)) == (ordered[0], ordered[-1])


@given(times, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@example([0.0, 1.0, 1.0, 1.0], 0.0625, 0.125)
def test_a_higher_quantile_is_not_lower(ordered: list[float], p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert quantile(ordered, low) <= quantile(ordered, high) + 1e-6


def test_the_middle_of_an_even_spread_is_its_median() -> None:
    assert quantile(list(range(101)), 0.5) == 50
    assert quantile([1.0, 3.0], 0.5) == 2.0


@pytest.mark.parametrize("q", [0.2, 0.4, 0.5, 0.6, 0.8, 0.9])
def test_a_quantile_of_an_even_spread_is_itself(q: float) -> None:
    assert quantile(list(range(1001)), q) == pytest.approx(1000 * q, abs=1)


@pytest.mark.parametrize("q", [0.2, 0.4, 0.5, 0.6, 0.8])
@pytest.mark.parametrize("outlier", [0.0, 1e6])
def test_what_was_interrupted_is_in_no_quantile_but_the_end(q: float, outlier: float) -> None:
    """Two of a hundred are far off, the others alike."""
    assert quantile(sorted([1.0] * 98 + [outlier] * 2), q) == pytest.approx(1.0)


def test_two_kernels_less_than_a_tick_apart_are_told_apart() -> None:
    """5 ns of 1,160, seen by a clock of 32 ns: the middle values are the same."""
    draw = random.Random(0)

    def seen(mean: float) -> list[float]:
        return sorted((draw.gauss(mean, 20) // TICK) * TICK for _ in range(4000))

    for _ in range(10):
        shorter, longer = seen(1160), seen(1165)
        assert shorter[2000] == longer[2000]
        assert quantile(shorter, 0.5) < quantile(longer, 0.5)


def test_what_is_no_quantile_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantile 1\.5: expected 0 to 1"):
        quantile([1.0], 1.5)
