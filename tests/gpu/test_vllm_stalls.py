"""The judge of planted stalls, fed logs that are made up: it passes what is right and names what is not."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.gpu.vllm_stalls import MS, Run, _made, judge

STALL = (100 * MS, 600 * MS)


def run(stall: tuple[int, int] = STALL, *, charged: bool = True) -> Run:
    """r0 has gone before the stall, r1 is in its batch and r2 is queued; l0 comes in the middle of it."""
    start, end = stall
    length = end - start
    return Run(
        begun=0,
        came={"r0": 0, "r1": 1 * MS, "r2": 2 * MS, "l0": 300 * MS},
        went={"r0": 50 * MS, "r1": 700 * MS, "r2": 800 * MS, "l0": 900 * MS},
        stall=stall,
        batch=frozenset({"r1"}),
        charged={
            "r0": (0, 0),
            "r1": (length, 0),
            "r2": (0, length),
            "l0": (0, end - 300 * MS),
        }
        if charged
        else dict.fromkeys(("r0", "r1", "r2", "l0"), (0, 0)),
        waited={
            "r0": 50 * MS,
            "r1": 200 * MS + length,
            "r2": 300 * MS + length,
            "l0": 50 * MS + max(0, end - 300 * MS),
        },
    )


def calm() -> Run:
    found = run((100 * MS, 100 * MS), charged=False)
    found.waited["l0"] = 50 * MS
    return found


def pairs(number: int = 3) -> list[tuple[Run, Run]]:
    return [(run(), calm()) for _ in range(number)]


def test_what_is_right_is_good() -> None:
    found = judge("sleep", pairs())
    assert found["good"], found
    assert found["stall_s"] == [0.5, 0.5, 0.5]
    assert (found["in_batch"], found["queued"], found["not_touched"]) == (["r1"], ["l0", "r2"], ["r0"])
    assert found["exposure_less_overlap_ms"] == [0, 0]
    assert set(map(max, found["waited_more_than_charged_ms"].values())) == {0}


@pytest.mark.parametrize(
    ("name", "charged", "word"),
    [
        ("r0", (0, 2 * MS), "r0"),
        ("r1", (0, 500 * MS), "r1"),  # in the batch, said to be queued
        ("r2", (500 * MS, 0), "r2"),  # and the other way round
        ("r2", (0, 0), "r2"),
        ("l0", (1000, 0), "l0"),
        ("r9", (0, 0), "r9"),  # nobody knows it
    ],
)
def test_whoever_is_wrongly_charged_is_named(name: str, charged: tuple[int, int], word: str) -> None:
    made = pairs()
    made[1][0].charged[name] = charged
    found = judge("sleep", made)
    assert not found["good"]
    assert [text.partition(":")[0] for text in found["wrongly_charged"]] == [word]


def test_a_request_without_figures_is_named() -> None:
    made = pairs()
    del made[0][0].charged["r1"]
    found = judge("sleep", made)
    assert not found["good"]
    assert [text.partition(":")[0] for text in found["wrongly_charged"]] == ["r1"]


def test_an_exposure_that_is_not_the_overlap_is_seen_to_the_millisecond() -> None:
    made = pairs()
    made[0][0].charged["r2"] = (0, 506 * MS)
    assert judge("sleep", made)["exposure_less_overlap_ms"] == [0, 6]
    assert not judge("sleep", made)["good"]
    made[0][0].charged["r2"] = (0, 504 * MS)
    assert judge("sleep", made)["good"]


def test_who_waits_longer_than_charged_is_named_if_most_runs_say_so() -> None:
    made = pairs()
    made[0][0].waited["r2"] += 30 * MS
    assert judge("sleep", made)["good"]
    made[2][0].waited["r2"] += 11 * MS
    found = judge("sleep", made)
    assert not found["good"]
    assert found["beyond_the_bound_s"] == {"r2": 0.011}  # 2% of 500 ms are 10
    assert found["waited_more_than_charged_ms"]["r2"] == [30, 0, 11]


def test_somebody_has_to_be_queued_in_each_run() -> None:
    made = pairs()
    for name in ("r2", "l0"):
        made[1][0].came[name] = made[1][0].stall[1]
        made[1][0].charged[name] = (0, 0)
    assert not judge("sleep", made)["good"]


def test_each_run_can_be_judged_again() -> None:
    (first, *_) = judge("sleep", pairs())["runs"]
    assert first["stall"] == 500 * MS
    assert first["charged"].keys() == first["overlap"].keys() == first["waited"].keys()


def test_waiting_less_than_charged_is_no_fault() -> None:
    made = pairs()
    for with_stall, _ in made:
        with_stall.waited["l0"] -= 100 * MS  # an exposure is an upper bound
    assert judge("sleep", made)["good"]


def test_a_charge_without_a_stall_is_named() -> None:
    made = pairs()
    made[0][1].charged["r1"] = (2 * MS, 0)
    assert judge("sleep", made)["wrongly_charged"] == [f"calm: r1 {(2 * MS, 0)}"]
    assert not judge("sleep", made)["good"]


def test_a_stall_that_is_too_short_or_hits_nobody_shows_nothing() -> None:
    short = [(run((100 * MS, 520 * MS)), calm()) for _ in range(3)]
    assert not judge("compile", short)["good"]
    alone = deepcopy(pairs())
    for with_stall, _ in alone:
        for name in ("r2", "l0"):
            for each in (with_stall.came, with_stall.went, with_stall.charged, with_stall.waited):
                del each[name]
    assert not judge("sleep", alone)["good"]  # nobody was queued


def test_the_plugins_lines_make_a_run() -> None:
    lines = [
        {"what": "came", "id": "cmpl-s3r1e-0-1a2b3c4d", "at": 1},
        {"what": "begun", "number": 3, "at": 2},
        {"what": "stall", "number": 3, "ids": ["cmpl-s3r1e-0-1a2b3c4d"], "start": 4, "end": 7},
        {"what": "step", "step": 8, "ids": ["cmpl-s3r1e-0-1a2b3c4d"], "start": 3, "end": 8},
        {"what": "went", "id": "cmpl-s3r1e-0-1a2b3c4d", "at": 9},
        {"what": "cost", "id": "cmpl-s3r1e-0-1a2b3c4d", "start": 1, "end": 9, "in_batch": 3, "queued": 0},
    ]
    made = _made(lines)
    assert (made.begun, made.came, made.went, made.stall) == (2, {"r1": 1}, {"r1": 9}, (4, 7))
    assert made.batch == {"r1"}
    assert made.charged == {"r1": (3, 0)}
    assert made.overlap == {"r1": 3}
