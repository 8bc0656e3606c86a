"""Numbers of things, and names that give way where there is no room."""

from __future__ import annotations

import pytest

from tritonprobe.wording import counted, cut, short_names


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (1, "launch", "1 launch"),
        (0, "launch", "0 launches"),
        (2, "launch", "2 launches"),
        (1, "cold call", "1 cold call"),
        (1_234_567, "cold call", "1,234,567 cold calls"),
        (3, "entry", "3 entries"),
        (3, "day", "3 days"),
        (3, "process", "3 processes"),
        (2, "suffix", "2 suffixes"),
    ],
)
def test_one_is_one_and_more_are_many(number: int, noun: str, said: str):
    assert counted(number, noun) == said


def test_what_is_too_long_ends_in_an_ellipsis():
    assert [cut("matmul_kernel", width) for width in (13, 12, 1)] == ["matmul_kernel", "matmul_kern…", "…"]


def test_the_last_part_of_a_name_stands_for_it_unless_two_have_the_same():
    assert short_names(["a.b.add", "a.c.mul", "x.mul", "plain"]) == {
        "a.b.add": "add",
        "a.c.mul": "a.c.mul",
        "x.mul": "x.mul",
        "plain": "plain",
    }
