"""The interleaving: without, with, without again; both states checked, whatever happens."""

from __future__ import annotations

import gc
import time

import pytest

from tritonprobe.proving import rounds
from tritonprobe.proving.intervals import base_first
from tritonprobe.proving.rounds import BATCH, WARM_UP, StateError, interleave, timed


class Recorded:
    """A way of watching that writes down what is done with it."""

    def __init__(self, fails_in_block=None):
        self.log = []
        self._fails = fails_in_block
        self.is_on = False

    def on(self):
        self.is_on = True

    def off(self):
        self.is_on = False

    def check(self, on, launched):
        self.log.append((on, dict(launched)))
        if on and self._fails == len(self.log) // 3:
            raise StateError("not counted")

    def close(self):
        pass


def run(way, *, blocks, launches=10, launch=lambda: None, progress=lambda _: None):
    return interleave(
        way,
        {"add": launch},
        {"ours": {"add": launch}, "op": {"add": launch}},
        blocks=blocks,
        launches=launches,
        seed=3,
        finish=lambda: None,
        progress=progress,
    )


def test_each_block_is_without_with_and_without_again():
    way = Recorded()
    run(way, blocks=4)
    assert [on for on, _ in way.log] == [False, True, False] * 4


def test_each_state_knows_what_was_launched_in_it():
    way = Recorded()
    run(way, blocks=1, launches=25)
    once = WARM_UP + 25
    assert [launched for _, launched in way.log] == [{"add": once}, {"add": 2 * once}, {"add": once}]


def test_every_launch_of_a_state_is_made_in_that_state():
    way, seen = Recorded(), []
    run(way, blocks=2, launches=10, launch=lambda: seen.append(way.is_on))
    once = WARM_UP + 10
    assert seen == ([False] * once + [True] * 2 * once + [False] * once) * 2


def test_the_base_is_the_first_or_the_last_round_of_its_block_in_random_order(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(rounds, "timed", lambda launch, launches: float(next(clock)))
    found = run(Recorded(), blocks=20)
    # A block takes four numbers: before, ours, op, after.
    for block, first in enumerate(base_first(20, seed=3)):
        before, ours, op, after = range(4 * block, 4 * block + 4)
        base, again = (before, after) if first else (after, before)
        for mode, other in (("ours", ours), ("op", op)):
            each = found[mode]["add"]
            assert (each.base[block], each.other[block], each.again[block]) == (base, other, again)


def test_a_wrong_state_ends_it_and_leaves_the_way_off():
    way = Recorded(fails_in_block=1)
    with pytest.raises(StateError, match="not counted"):
        run(way, blocks=5)
    assert not way.is_on
    assert len(way.log) == 3 + 2


def test_progress_counts_blocks():
    told: list[int] = []
    run(Recorded(), blocks=3, progress=told.append)
    assert told == [1, 2, 3]


@pytest.mark.parametrize("launches", [1, BATCH, 2 * BATCH + 7])
def test_a_round_makes_as_many_launches_as_it_says_while_the_collector_waits(launches):
    collecting = []
    timed(lambda: collecting.append(gc.isenabled()), launches)
    assert collecting == [False] * launches
    assert gc.isenabled()


def test_a_round_counts_as_its_median_batch(monkeypatch):
    """One batch that the machine was busy in does not move it."""
    nanoseconds = iter([0, 100_000, 200_000, 9_000_000, 9_000_000, 9_200_000])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(nanoseconds))
    assert timed(lambda: None, 3 * BATCH) == 2.0


def test_a_launch_that_raises_gives_the_collector_back():
    def broken():
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        timed(broken, 5)
    assert gc.isenabled()
