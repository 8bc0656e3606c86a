"""The coverage of a prewarm is a share of the recorded launches."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.shapes.test_census import entry
from tritonprobe.adapter.replay import Replay
from tritonprobe.prewarming.plan import make_plan
from tritonprobe.prewarming.run import coverage
from tritonprobe.shapes.census import Census, Entry, Tuned


class OneTarget:
    """What `coverage` asks a replay."""

    def of_this_target(self, entry: Entry) -> bool:
        return entry.environment == "e"


def covered(census: Census, *hashes: str) -> float | None:
    there = [identity for identity, e in census.entries.items() if e.hash in hashes]
    return coverage(census, make_plan(census), cast(Replay, OneTarget()), there)


def test_it_is_a_share_of_all_launches_of_the_kernels() -> None:
    census = Census.of(
        entries=[entry(hash="aa", buckets=("n<=256",)), entry("m.mul", "bb", buckets=("n<=64",))],
        launches={("m.add", "n<=256"): 2, ("m.add", "n<=512"): 1, ("m.mul", "n<=64"): 3, ("m.gone", "all"): 9},
    )
    assert covered(census, "aa") == 0.5


@pytest.mark.parametrize(
    "beside", [{"hash": "cc", "configs": ("BLOCK: 64",), "launched": False}, {"hash": "cc", "environment": "other"}]
)
def test_losers_of_a_tuning_and_other_targets_stand_for_no_launches(beside: dict[str, Any]) -> None:
    winner = Tuned("m.add", "e", '["k"]', '"BLOCK: 32"', "m", "add", "s", "{}", measured=True)
    census = Census.of(
        entries=[
            entry(hash="aa", buckets=("n<=256",), configs=("BLOCK: 32",), launched=False),
            entry(buckets=("n<=256",), **beside),
            entry(hash="bb", buckets=("n<=512",)),
        ],
        tunings=[winner],
        launches={("m.add", "n<=256"): 10, ("m.add", "n<=512"): 10},
    )
    assert covered(census, "aa") == 0.5
