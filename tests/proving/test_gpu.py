"""What `bench gpu` makes of its raw values; that it has any needs a GPU (tests/gpu)."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tritonprobe.cli import main
from tritonprobe.proving.gpu import PARTS, Gpu

FAST, SAME, SLOW = (
    {"a": 1.00, "b": 1.10, "c": 1.50},
    {"a": 1.02, "b": 1.01, "c": 1.50},
    {"a": 1.30, "b": 1.40, "c": 1.20},
)


def tuned(*sessions: dict[str, float]) -> list[dict[str, object]]:
    return [{"winner": min(ms, key=ms.__getitem__), "ms": ms} for ms in sessions]


def test_help_names_the_parts() -> None:
    said = CliRunner().invoke(main, ["bench", "gpu", "--help"]).stdout.split()
    assert {f"{part}," for part in PARTS} <= {word.replace(";", ",") for word in said}


def test_a_winner_is_held_against_what_ten_measurements_say_and_not_against_its_own() -> None:
    found = Gpu({"tuner": {"add do_bench": tuned(SLOW, FAST), "add gpu.bench": tuned(FAST, SAME, FAST)}}, {}, {}, 0)
    assert found.steady() == {"add do_bench": 1, "add gpu.bench": 2}
    assert found.slower_than_best() == {
        "add do_bench": pytest.approx(0.5),  # c, which takes 1.50 where a takes 1.00
        "add gpu.bench": pytest.approx(0.1),  # b once, which takes 1.10
    }


def test_without_the_reference_nobody_says_how_good_a_winner_is() -> None:
    assert Gpu({"tuner": {"add do_bench": tuned(FAST)}}, {}, {}, 0).slower_than_best() == {}
    assert Gpu({}, {}, {}, 0).slower_than_best() == {}
