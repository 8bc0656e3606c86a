"""Medians with intervals, and the order of measurements. Arithmetic only: no clock, no Triton.

The bootstrap is the percentile kind (B. Efron, R. Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13): it
draws as many pairs as there are, with replacement, takes their median, and does so many times. It assumes nothing of
the noise's shape, which has a long tail upwards on a machine that does other things too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95
DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and the interval that holds the true one with the confidence `CONFIDENCE`."""

    median: float
    low: float
    high: float

    def farthest_from(self, value: float) -> float:
        """How far from `value` the true median may be."""
        return max(abs(self.low - value), abs(self.high - value))


def interval(values: Sequence[float], seed: int) -> Interval:
    """The median of `values` with its bootstrap interval; the same seed gives the same interval."""
    if not values:
        raise ValueError("no values: an interval needs at least one")
    draw = random.Random(seed)  # noqa: S311  # resampling has to be repeatable, not secret
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    tail = round((1 - CONFIDENCE) / 2 * DRAWS)
    return Interval(median(values), medians[tail], medians[DRAWS - 1 - tail])


def differences(base: Sequence[float], other: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(base, other, strict=True)]


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    return [b / a for a, b in zip(base, other, strict=True)]


def base_first(pairs: int, seed: int) -> list[bool]:
    """For each pair, whether the base comes before what is compared with it: half of them, in random order.

    Half and not each by the toss of a coin, so that a drift of the machine weighs on both sides alike.
    """
    order = [index % 2 == 0 for index in range(pairs)]
    random.Random(seed).shuffle(order)  # noqa: S311
    return order
