"""Exposure: interval arithmetic, checked nanosecond by nanosecond against the definition."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.model import Exposure
from tritonprobe.requests.exposure import coalesce, exposure, intersection, overlap, union

moments = st.integers(0, 40)
intervals = st.lists(st.tuples(moments, moments), max_size=8)


def points(spans) -> set[int]:
    """The nanoseconds that lie in any of the intervals: the definition, spelt out."""
    return {t for start, end in spans for t in range(start, end)}


def test_a_stall_is_split_by_own_steps_and_by_the_first_token():
    """Life 0-100, first token at 60, own steps 40-70; the engine stalls 10-50 and 65-90.

    Before the token: 10-40 queued, 40-50 in a step of its own. After: 65-70 in its own, 70-90 queued.
    """
    before, after = exposure((0, 100), 60, [(40, 70)], [(10, 50), (65, 90)])
    assert before == Exposure(in_batch_ns=10, queued_ns=30)
    assert after == Exposure(in_batch_ns=5, queued_ns=20)


def test_without_a_first_token_all_of_it_is_before():
    before, after = exposure((0, 100), None, [], [(10, 50), (65, 300)])
    assert before == Exposure(queued_ns=75)
    assert after == Exposure()


def test_ranks_that_stall_together_are_counted_once():
    before, _ = exposure((0, 100), None, [], [(10, 50), (10, 50), (20, 60)])
    assert before.total_ns == 50


@pytest.mark.parametrize("first_token", [-5, 0, 100, 900])
def test_a_first_token_outside_the_life_is_taken_at_its_edge(first_token):
    before, after = exposure((0, 100), first_token, [(0, 100)], [(0, 100)])
    assert (before.in_batch_ns, after.in_batch_ns) == ((0, 100) if first_token <= 0 else (100, 0))


@given(intervals)
def test_union_covers_the_same_time_in_sorted_separate_pieces(spans):
    merged = union(spans)
    assert points(merged) == points(spans)
    assert all(start < end for start, end in merged)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(intervals, intervals)
def test_intersection_is_the_time_in_both(a, b):
    common = intersection(union(a), union(b))
    assert points(common) == points(a) & points(b)
    assert common == union(common)


@given(intervals, moments, moments)
def test_overlap_measures_what_lies_between(spans, start, end):
    assert overlap(union(spans), start, end) == len(points(spans) & points([(start, end)]))


@given(intervals, st.integers(1, 8))
def test_coalescing_covers_everything_and_closes_the_narrowest_gaps(spans, bound):
    exact = union(spans)
    bounded = coalesce(exact, bound)
    assert len(bounded) == min(bound, len(exact))
    assert points(bounded) >= points(exact)
    gaps = sorted(b[0] - a[1] for a, b in pairwise(exact))
    assert len(points(bounded)) - len(points(exact)) == sum(gaps[: max(0, len(exact) - bound)])


@given(st.tuples(moments, moments).map(sorted), st.none() | moments, intervals, intervals)
def test_exposure_is_its_definition_nanosecond_by_nanosecond(life, first, steps, stall):
    start, end = life
    before, after = exposure((start, end), first, steps, stall)

    split = end if first is None else min(max(first, start), end)
    stalled, own = points(stall), points(steps)
    for part, span in ((before, points([(start, split)])), (after, points([(split, end)]))):
        assert part.in_batch_ns == len(span & stalled & own)
        assert part.queued_ns == len((span & stalled) - own)
    assert before.total_ns + after.total_ns == len(points([(start, end)]) & stalled) <= end - start
