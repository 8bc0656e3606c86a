"""The plan: stall saved per second of prewarm, cut by cover and budget, without what only tuners met."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shapes.censuses import censuses
from tests.shapes.test_census import entry
from tritonprobe.prewarming.plan import READ_NS, UNMEASURED_NS, make_plan, untuned, winners
from tritonprobe.shapes.census import Census, Tuned

SECOND = 1_000_000_000


def hashes(census: Census, **options: object) -> list[str]:
    return [task.entry.hash for task in make_plan(census, **options).tasks]  # type: ignore[arg-type]


def test_what_more_processes_met_comes_first() -> None:
    census = Census.of(
        entries=[
            entry(hash="aa", cold=(("compile", 1, SECOND),)),
            entry(hash="bb", cold=(("compile", 10, 10 * SECOND),)),
            entry(hash="cc", cold=(("compile", 4, 8 * SECOND), ("disk", 1, 5))),
        ]
    )
    assert hashes(census) == ["bb", "cc", "aa"]


def test_what_is_on_disk_costs_little_and_comes_first() -> None:
    census = Census.of(entries=[entry(hash=h, cold=(("compile", 1, SECOND),)) for h in ("aa", "bb")])
    plan = make_plan(census, on_disk=lambda e: e.hash == "bb")
    assert [(task.entry.hash, task.costs_ns) for task in plan.tasks] == [("bb", READ_NS), ("aa", SECOND)]


def test_between_equals_more_launches_come_first() -> None:
    census = Census.of(
        entries=[entry(hash=h, buckets=(h,)) for h in ("aa", "bb")], launches={("m.add", "bb"): 9, ("m.add", "aa"): 1}
    )
    assert hashes(census) == ["bb", "aa"]
    assert make_plan(census).tasks[0].costs_ns == UNMEASURED_NS


def test_the_budget_counts_for_every_worker() -> None:
    census = Census.of(entries=[entry(hash=f"{i:02}", cold=(("compile", 1, SECOND),)) for i in range(8)])
    assert len(hashes(census, budget_ns=2 * SECOND)) == 2
    assert len(hashes(census, budget_ns=2 * SECOND, workers=3)) == 6
    assert len(make_plan(census, budget_ns=2 * SECOND).left_out) == 6


def test_cover_leaves_the_long_tail_out() -> None:
    met = [("aa", 900), ("bb", 95), ("cc", 5)]
    census = Census.of(entries=[entry(hash=h, cold=(("compile", n, n * SECOND),)) for h, n in met])
    assert hashes(census, cover=0.9) == ["aa"]
    assert hashes(census, cover=0.99) == ["aa", "bb"]
    assert hashes(census, cover=1.0) == ["aa", "bb", "cc"]
    with pytest.raises(ValueError, match="expected a share"):
        make_plan(census, cover=0)


def test_configurations_that_lost_are_not_needed() -> None:
    census = Census.of(
        entries=[
            entry(hash="aa", configs=("BLOCK: 64",), launched=False),
            entry(hash="bb", configs=("BLOCK: 128",), launched=False),
            entry(hash="cc", configs=("BLOCK: 256",), launched=True),
        ],
        tunings=[Tuned("m.add", "e", "[64]", '"BLOCK: 128"', "m", "add", "s", "{}", measured=True, sessions=1)],
    )
    plan = make_plan(census)
    assert [task.entry.hash for task in plan.tasks] == ["bb", "cc"]
    assert [lost.hash for lost in plan.unneeded] == ["aa"]


def test_a_winner_that_nobody_measured_makes_no_losers() -> None:
    lost = entry(hash="aa", configs=("BLOCK: 64",), launched=False)
    unmeasured = Tuned("m.add", "e", "[64]", '"BLOCK: 128"', "m", "add", "s", "{}", sessions=1)
    assert hashes(Census.of(entries=[lost], tunings=[unmeasured])) == ["aa"]
    assert untuned(Census.of(tunings=[unmeasured])) == {"m.add"}
    assert untuned(Census.of(tunings=[replace(unmeasured, measured=True)])) == frozenset()


def test_of_several_winners_the_measured_one_counts_then_the_most_chosen() -> None:
    def tuned(winner: str, sessions: int, measured: bool) -> Tuned:
        return Tuned("k", "e", "[1]", f'"{winner}"', "m", "k", "s", "{}", measured=measured, sessions=sessions)

    for order in itertools.permutations([tuned("a", 9, False), tuned("b", 1, True), tuned("c", 2, True)]):
        assert [t.winner for t in winners(Census.of(tunings=order))] == ['"c"']


@given(censuses, st.floats(0.01, 1), st.integers(0, 1 << 62))
def test_every_needed_entry_is_a_task_or_left_out(census: Census, cover: float, budget: int) -> None:
    plan = make_plan(census, cover=cover, budget_ns=budget)
    parts = [*(t.entry.identity for t in (*plan.tasks, *plan.left_out)), *(e.identity for e in plan.unneeded)]
    assert sorted(parts) == sorted(census.entries)
    rates = [task.rate for task in plan.tasks]
    assert rates == sorted(rates, reverse=True)
