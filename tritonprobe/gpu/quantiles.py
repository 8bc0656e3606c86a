"""Quantiles of times that a clock gives in ticks. Pure.

GPU timestamps come in steps of 32 ns on an H200, a thirtieth of a short kernel: the middle value of many then says no
more than which tick is next, and two configurations that differ by a few nanoseconds win in turns. The mean of the
values around the middle says where between two ticks it lies. It takes in most of them, since the fewer, the more it
scatters, and leaves out the ends, where the interrupted are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

AROUND = 0.4
"""The share of the values on each side of a quantile that speak for it; fewer near the ends, none at 0 and 1."""

LEAST = 1e-9
"""Of a value: what is less speaks for nothing, and is too little to divide by."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """The mean of the values between the quantiles ``q - AROUND`` and ``q + AROUND``. Raises ValueError.

    `ordered` is not empty. For a symmetric distribution and q=0.5 that is the median; else it is a smoothed one.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q}: expected 0 to 1")
    count = len(ordered)
    around = min(AROUND, q, 1 - q)
    low, high = (q - around) * count, (q + around) * count
    if high - low < LEAST:
        return ordered[min(int(low), count - 1)]
    first, last = int(low), min(math.ceil(high), count)
    weights = [min(place + 1, high) - max(place, low) for place in range(first, last)]
    return sum(w * value for w, value in zip(weights, ordered[first:last], strict=True)) / sum(weights)
