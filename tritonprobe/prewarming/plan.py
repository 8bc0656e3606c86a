"""What to prewarm first: stall saved per second of prewarm. Pure: a census and costs in, an order out.

Each variant is cold once a process, so prewarming it saves what its cold call took, times the share of processes that
met it. What it costs depends on where it is now: compiling takes about what the compile took, a binary on the disk a
few milliseconds. Figures that nobody measured are the median of those that somebody did.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tritonprobe.shapes.census import Census, Entry, Tuned

UNMEASURED_NS = 300_000_000
"""A compile that nobody timed, where nobody timed any: the median of docs/measurements."""
READ_NS = 5_000_000
"""Reading and loading a binary that is there."""


@dataclass(frozen=True, slots=True)
class Task:
    entry: Entry
    saves_ns: int
    costs_ns: int
    on_disk: bool = False

    @property
    def rate(self) -> float:
        """Stall saved per second of prewarm."""
        return self.saves_ns / max(1, self.costs_ns)


@dataclass(frozen=True, slots=True)
class Plan:
    """``tasks`` in their order; ``left_out`` are those that `cover` or `budget` made unnecessary or unaffordable."""

    tasks: tuple[Task, ...]
    left_out: tuple[Task, ...]
    unneeded: tuple[Entry, ...]
    """Met by tuners only, which chose others."""


def make_plan(
    census: Census,
    *,
    cover: float = 1.0,
    budget_ns: int | None = None,
    workers: int = 1,
    on_disk: Callable[[Entry], bool] = lambda _: False,
) -> Plan:
    """The order, cut where it saves the share `cover` of all stall there was, or where the budget ends.

    ``workers`` compile at the same time. Raises ValueError for a `cover` that is no share.
    """
    if not 0 < cover <= 1:
        raise ValueError(f"cover={cover}: expected a share above 0, up to 1")
    wanted, unneeded = needed(census)
    usual = _usual_ns(wanted)
    most = max((_met(entry) for entry in wanted), default=1)
    weights = census.weights(wanted)
    tasks = [_task(entry, usual, most, on_disk(entry)) for entry in wanted]
    # Between equals, what more launches stand for; then by name, so that every pod has one order.
    tasks.sort(key=lambda task: (-task.rate, -weights[task.entry.identity], task.entry.identity))
    total = sum(task.saves_ns for task in tasks)
    kept: list[Task] = []
    left_out: list[Task] = []
    saved = spent = 0
    for task in tasks:
        enough = saved >= cover * total and cover < 1
        dear = budget_ns is not None and spent + task.costs_ns > budget_ns * workers
        if enough or dear:
            left_out.append(task)
            continue
        kept.append(task)
        saved += task.saves_ns
        spent += task.costs_ns
    return Plan(tuple(kept), tuple(left_out), tuple(unneeded))


def winners(census: Census) -> list[Tuned]:
    """One winner for each key that tuners met: the one most often chosen, a measured one before others."""
    best: dict[tuple[str, ...], Tuned] = {}
    for tuned in census.tunings.values():
        place = (tuned.kernel, tuned.environment, tuned.key)
        rank = (tuned.measured, tuned.sessions, tuned.winner)
        known = best.get(place)
        if known is None or rank > (known.measured, known.sessions, known.winner):
            best[place] = tuned
    return [best[place] for place in sorted(best)]


def untuned(census: Census) -> frozenset[str]:
    """Kernels whose autotuners chose where nothing could be measured: on a GPU they will choose anew."""
    measured = {tuned.kernel for tuned in census.tunings.values() if tuned.measured}
    return frozenset(tuned.kernel for tuned in census.tunings.values()) - measured


def needed(census: Census) -> tuple[list[Entry], list[Entry]]:
    """The entries that launches need, and those that tuners tried only, and that lost to a measured winner."""
    chosen = {(tuned.kernel, json.loads(tuned.winner)) for tuned in winners(census)}
    open_ = untuned(census)
    wanted: list[Entry] = []
    unneeded: list[Entry] = []
    for _, entry in sorted(census.entries.items()):
        won = any((entry.kernel, config) in chosen for config in entry.configs)
        keep = entry.launched or won or not entry.configs or entry.kernel in open_
        (wanted if keep else unneeded).append(entry)
    return wanted, unneeded


def _met(entry: Entry) -> int:
    return max(1, sum(count for _, count, _ in entry.cold))


def _usual_ns(entries: Iterable[Entry]) -> int:
    known = [ns // count for entry in entries for tier, count, ns in entry.cold if tier == "compile" and count]
    return int(statistics.median(known)) if known else UNMEASURED_NS


def _task(entry: Entry, usual: int, most: int, there: bool) -> Task:
    compiles = [(count, ns) for tier, count, ns in entry.cold if tier == "compile" and count]
    compiling = sum(ns for _, ns in compiles) // sum(count for count, _ in compiles) if compiles else usual
    return Task(entry, compiling * _met(entry) // most, min(READ_NS, compiling) if there else compiling, there)
