"""The sentence at ready: what the start has cost, and what of it kept caches would have spared."""

from __future__ import annotations

import pytest

from tritonprobe.ledger import MemoryLedger, schema
from tritonprobe.ledger.startup import cost


def started(phases: dict[str, float], **calls: list[float]) -> MemoryLedger:
    ledger = MemoryLedger()
    for tier, seconds in calls.items():
        for each in seconds:
            ledger.observe(schema.COLD_CALL_SECONDS, (tier,), each)
    for phase, seconds_ in phases.items():
        ledger.add(schema.STARTUP_COLD, (phase,), seconds_)
    return ledger


def test_where_a_census_was_replayed_another_replay_would_save_nothing() -> None:
    ledger = started({"cubin": 20.0}, compile=[30.0])
    for outcome, what in (("failed", "prewarm"), ("no_device", "prewarm"), ("done", "a kept cache")):
        ledger.add(schema.PREWARMS, (outcome,))
        assert cost(ledger) == f"1 compile 30.0 s, 0 disk hits 0.0 s; {what} would have saved ~20 s"


@pytest.mark.parametrize(
    ("ledger", "sentence"),
    [
        (started({}), "0 compiles 0.0 s, 0 disk hits 0.0 s"),
        (
            started({"ptx": 20.0, "launcher_build": 15.5, "module_load": 9.0}, compile=[30.0, 8.2], disk=[0.4]),
            "2 compiles 38.2 s, 1 disk hit 0.4 s; prewarm would have saved ~36 s",
        ),
        (
            started({"cubin": 0.75, "process_init": 1.0}, compile=[2.0], remote=[0.5], disk=[0.25]),
            "1 compile 2.0 s, 2 disk hits 0.8 s; prewarm would have saved ~0.8 s",
        ),
    ],
)
def test_the_sentence(ledger: MemoryLedger, sentence: str) -> None:
    assert cost(ledger) == sentence
