"""How often a window, and how long: as much as a share of the program's time allows. Pure arithmetic.

A window's cost is what its own thread computed, and what each launch and each replayed kernel paid for being recorded.
The next window comes once that is at most the share of the time in between, after a random pause: a fixed one would
fall into step with the program's own rhythm and see the same part of it again and again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SHARE = 0.002
LEAST_PERIOD, MOST_PERIOD = 1.0, 120.0
LEAST_SECONDS, MOST_SECONDS = 0.005, 0.16
FEW, MANY = 400, 4000
"""Launches and records of a window below which it grows, and above which it shrinks."""
WINDOWED_LAUNCH_NS = 4500
"""What a launch in a window pays for being seen and recorded, at most; `tritonprobe bench gpu` measures it."""
REPLAYED_KERNEL_NS = 400
"""What a replayed kernel pays, measured on graphs of 40 and 100 kernels of 1 us: 0.25 to 0.45 us."""


@dataclass(slots=True)
class Budget:
    share: float = SHARE
    seconds: float = 0.02  # of the next window
    period: float = LEAST_PERIOD  # mean seconds to the next window
    cost: float = 0.0  # seconds, of all windows so far
    _usual: float = 0.0

    def spent(self, own: float, launches: int, replayed: int) -> float:
        """A window is over: `own` seconds of ours, so many launches and replayed kernels. Returns its cost, in seconds.

        The first window also pays for what is done once, so it does not say how much the next will cost.
        """
        cost = own + (launches * WINDOWED_LAUNCH_NS + replayed * REPLAYED_KERNEL_NS) / 1e9
        first = self.cost == 0
        self.cost += cost
        if not first:
            self._usual = cost if not self._usual else 0.7 * self._usual + 0.3 * cost
        self.period = min(max(self._usual / self.share, LEAST_PERIOD), MOST_PERIOD)
        events = launches + replayed
        if events < FEW:
            self.seconds = min(self.seconds * 2, MOST_SECONDS)
        elif events > MANY:
            self.seconds = max(self.seconds / 2, LEAST_SECONDS)
        return cost

    def pause(self) -> float:
        """Seconds to wait now."""
        return random.uniform(0.5, 1.5) * self.period  # noqa: S311  # no secret
