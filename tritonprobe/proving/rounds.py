"""Timed rounds of hot launches, interleaved: without, with, without again; and both states checked. Knows no Triton.

A block is three rounds in the order A B A. The one A or the other, in random order, is the base that B is compared
with; the A that is left over says how much two equal rounds differ, with a switch on and off between them, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from tritonprobe.proving.intervals import base_first

WARM_UP = 300
"""Launches before each timed round: the interpreter specialises bytecode anew after a switch."""
BATCH = 100
"""A round is timed in batches of this many launches and counts as the median of them. On a machine that does other
things too, a mean would be of those things; what the probe adds, it adds to each launch."""

Launch = Callable[[], object]
Launches = Mapping[str, Launch]  # by the kernel's name


class StateError(Exception):
    """What is compared was not switched on, or not off, when it should have been."""


class UnavailableError(Exception):
    """What is to be compared is not there, or sees nothing on this device; the message says which."""


class Way(Protocol):
    """A way of watching launches that can be switched on and off."""

    def on(self) -> None: ...
    def off(self) -> None: ...
    def check(self, on: bool, launched: Mapping[str, int]) -> None:
        """Raises StateError unless the state is what it should be, after these launches since the last switch."""

    def close(self) -> None:
        """The end. Raises StateError if it turns out that nothing was watched."""


@dataclass(slots=True)
class Rounds:
    """One kernel's rounds, in microseconds a launch: the i-th of each list come from the same block."""

    base: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


def interleave(
    way: Way,
    plain: Launches,
    watched: Mapping[str, Launches],
    *,
    blocks: int,
    launches: int,
    seed: int,
    finish: Callable[[], None],
    progress: Callable[[int], None],
) -> dict[str, dict[str, Rounds]]:
    """Rounds by mode and kernel. `plain` is launched without `way`, each of `watched` with it, `launches` a round.

    `finish` waits for the device. Raises StateError. The way is off when it returns.
    """
    found = {mode: {kernel: Rounds() for kernel in plain} for mode in watched}
    for block, first in enumerate(base_first(blocks, seed)):
        before = _state(way, False, {"": plain}, launches, finish)[""]
        way.on()
        try:
            during = _state(way, True, watched, launches, finish)
        finally:
            way.off()
        after = _state(way, False, {"": plain}, launches, finish)[""]
        base, again = (before, after) if first else (after, before)
        for mode, rounds in found.items():
            for kernel, each in rounds.items():
                each.base.append(base[kernel])
                each.other.append(during[mode][kernel])
                each.again.append(again[kernel])
        progress(block + 1)
    return found


def _state(
    way: Way, on: bool, modes: Mapping[str, Launches], launches: int, finish: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """Times every kernel of every mode in one state, then checks that it was that state."""
    found: dict[str, dict[str, float]] = {}
    launched: dict[str, int] = {}
    for mode, by_kernel in modes.items():
        found[mode] = {}
        for kernel, launch in by_kernel.items():
            for _ in range(WARM_UP):
                launch()
            finish()
            found[mode][kernel] = timed(launch, launches)
            finish()
            launched[kernel] = launched.get(kernel, 0) + WARM_UP + launches
    way.check(on, launched)
    return found


def timed(launch: Launch, launches: int) -> float:
    """Microseconds a launch, of the median batch. The garbage collector waits."""
    clock, batches, left = time.perf_counter_ns, [], launches
    collecting = gc.isenabled()
    gc.disable()
    try:
        while left > 0:
            size = min(BATCH, left)
            start = clock()
            for _ in range(size):
                launch()
            batches.append((clock() - start) / size / 1e3)
            left -= size
    finally:
        if collecting:
            gc.enable()
    return median(batches)
