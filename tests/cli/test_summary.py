"""The sentence that ends a run: what its ledger counted, and nothing of what was there before."""

from __future__ import annotations

import pytest

from tritonprobe.cli.summary import Counted
from tritonprobe.ledger import MemoryLedger, schema


def counted(launches: int = 0, **seconds: list[float]) -> MemoryLedger:
    """A ledger with so many launches, and a cold call of each of these seconds, by tier."""
    ledger = MemoryLedger()
    for kernel in ("add", "mul"):
        ledger.add(schema.LAUNCHES, (kernel, "all"), launches / 2)
    for tier, each in seconds.items():
        for took in each:
            ledger.observe(schema.COLD_CALL_SECONDS, (tier,), took)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "sentence"),
    [
        (counted(), "0 launches, no cold calls"),
        (counted(1_234_568), "1,234,568 launches, no cold calls"),
        (
            counted(30, compile=[1200.0, 0.5], disk=[0.25] * 3),
            "30 launches, 5 cold calls (3 disk, 2 compile) of 1,201.25 s",
        ),
        (counted(2, memory=[0.0042]), "2 launches, 1 cold call (1 memory) of 4.2 ms"),
    ],
)
def test_the_sentence(ledger: MemoryLedger, sentence: str) -> None:
    assert str(Counted.by(ledger)) == sentence


def test_what_came_after_ready_is_said() -> None:
    ledger = counted(7, compile=[1.0, 2.0], disk=[0.5])
    ledger.add(schema.AFTER_READY, ("compile",), 1)
    ledger.add(schema.AFTER_READY, ("disk",), 1)
    sentence = "7 launches, 3 cold calls (1 disk, 2 compile) of 3.50 s; 2 of them after ready (1 disk, 1 compile)"
    assert str(Counted.by(ledger)) == sentence


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"prewarm": 3}, 0, "3 of them in the prewarm, none after ready"),
        ({"prewarm": 1, "start": 2}, 0, "1 of them in the prewarm, 2 before ready, none after ready"),
        ({"start": 3}, 0, "3 of them before ready, none after ready"),
        ({"prewarm": 2}, 1, "2 of them in the prewarm, 1 after ready (1 compile)"),
        ({"prewarm": 1}, 1, "1 of them in the prewarm, 1 in the background after ready, 1 after ready (1 compile)"),
    ],
)
def test_with_a_prewarm_it_is_said_when_each_call_came(before: dict[str, int], after: int, told: str) -> None:
    ledger = counted(20, compile=[0.05] * 3)
    ledger.add(schema.PREWARMS, ("done",))
    for during, calls in before.items():
        ledger.add(schema.BEFORE_READY, (during,), calls)
    ledger.add(schema.AFTER_READY, ("compile",), after)
    assert str(Counted.by(ledger)) == f"20 launches, 3 cold calls (3 compile) of 150.0 ms; {told}"


def test_a_prewarm_in_code_is_told_without_a_word_on_ready_which_nobody_knows() -> None:
    ledger = counted(20, compile=[0.5, 0.5])
    ledger.add(schema.BEFORE_READY, ("prewarm",), 2)
    assert str(Counted.by(ledger)) == "20 launches, 2 cold calls (2 compile) of 1.00 s; 2 of them in the prewarm"


def test_what_was_there_before_is_not_this_runs() -> None:
    before, after = Counted.by(counted(10, compile=[1.0])), Counted.by(counted(16, compile=[1.0], disk=[0.5, 0.5]))
    assert str(after.since(before)) == "6 launches, 2 cold calls (2 disk) of 1.00 s"
    assert str(after.since(after)) == "0 launches, no cold calls"
