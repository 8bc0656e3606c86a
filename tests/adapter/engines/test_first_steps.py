"""What an engine's first step of a size took longer than the same again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.adapter.engines import first_steps
from tritonprobe.adapter.engines.first_steps import FirstSteps

MS = 1_000_000


class Told:
    """What was told, by tokens, in milliseconds."""

    def __init__(self) -> None:
        self.ms: dict[int, float] = {}
        self.steps = FirstSteps(self.tell)

    def tell(self, tokens: int, ns: int) -> None:
        assert tokens not in self.ms, "each size has one first step"
        self.ms[tokens] = ns / MS

    def step(self, tokens: int, took_ms: float, cold_ms: float = 0, requests: int = 1) -> None:
        self.steps.step((tokens, requests), int(took_ms * MS), int(cold_ms * MS))


def test_what_a_first_step_took_longer_is_told_when_the_same_came_again() -> None:
    told = Told()
    told.step(17, took_ms=600, cold_ms=450)
    told.step(17, took_ms=20)
    assert told.ms == {}
    told.step(32, took_ms=24)  # 17 to 32 tokens are one size
    assert told.ms == {32: pytest.approx(600 - 450 - 24)}
    told.step(17, took_ms=900)
    assert told.ms == {32: pytest.approx(126)}, "that one was no first step"


def test_a_first_step_that_was_as_long_as_others_is_not_worth_a_word() -> None:
    told = Told()
    for _ in range(5):
        told.step(1, took_ms=20)
    assert told.ms == {}


def test_a_step_with_a_cold_call_is_nothing_to_compare_with() -> None:
    told = Told()
    told.step(128, took_ms=100)
    told.step(128, took_ms=1000, cold_ms=980)
    told.step(128, took_ms=20)
    told.step(128, took_ms=20)
    assert told.ms == {128: pytest.approx(80)}


def test_one_slow_step_among_the_next_makes_the_claim_smaller() -> None:
    told = Told()
    told.step(128, took_ms=100)
    told.step(128, took_ms=20)
    told.step(128, took_ms=70)
    assert told.ms == {128: pytest.approx(30)}


def test_as_many_tokens_of_other_numbers_of_requests_are_other_sizes() -> None:
    told = Told()
    told.step(64, took_ms=100, requests=1)
    told.step(64, took_ms=20, requests=64)
    told.step(64, took_ms=20, requests=64)
    assert told.ms == {}


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 300)), max_size=300))
def test_sizes_are_bounded(sizes: list[tuple[int, int]]) -> None:
    steps = FirstSteps(lambda tokens, ns: None)
    first_steps.MAX_SIZES, before = 8, first_steps.MAX_SIZES
    try:
        for size in sizes:
            steps.step(size, MS, 0)
    finally:
        first_steps.MAX_SIZES = before
    assert len(steps._first) <= 8


def test_a_size_that_was_told_of_is_known_and_no_longer_timed() -> None:
    told = Told()
    for took in (100, 20, 20):
        told.step(17, took_ms=took)
        assert (17, 1) not in told.steps.known
    told.step(17, took_ms=20)
    assert told.steps.known == {(17, 1)}


def test_a_step_of_nothing_is_no_step() -> None:
    told = Told()
    told.step(0, took_ms=100, requests=0)
    assert told.steps._first == {}
