"""Quantiles of times that a clock gives in ticks. Pure.

GPU timestamps come in steps of 32 ns on an H200, a thirtieth of a short kernel: the middle value of many then says no
more than which tick is next, and two configurations that differ by a few nanoseconds win in turns. The mean of the
values around the middle says where between two ticks it lies. It takes in most of them, since the fewer, the more it
scatters, and leaves out the ends, where the interrupted are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

AROUND = 0.8
"""Of the values between a quantile and the nearer end the share that speak for it, and as many on its other side. So a
fifth of those towards an end are left out, whichever quantile it is; at 0 and 1 the end speaks for itself."""

LEAST = 1e-9
"""Of a value: what is less speaks for nothing, and is too little to divide by."""


def require_quantile(q: float) -> None:
    """Raises ValueError."""
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q}: expected 0 to 1")


def quantile(ordered: Sequence[float], q: float) -> float:
    """The mean of the values around `q`: for q=0.5 those between the quantiles 0.1 and 0.9. Raises ValueError.

    `ordered` is not empty. Where values rise evenly that is the quantile itself, else a smoothed one: of two groups, of
    which one is the larger, the middle lies between them.
    """
    require_quantile(q)
    count = len(ordered)
    around = AROUND * min(q, 1 - q)
    low, high = (q - around) * count, (q + around) * count
    if high - low < LEAST:
        return ordered[min(int(low), count - 1)]
    first, last = int(low), min(math.ceil(high), count)
    weights = [min(place + 1, high) - max(place, low) for place in range(first, last)]
    return sum(w * value for w, value in zip(weights, ordered[first:last], strict=True)) / sum(weights)
