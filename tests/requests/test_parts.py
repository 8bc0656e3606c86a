"""A request's life in parts, and its exposure by phases: against the definition, nanosecond by nanosecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.model import Parts
from tritonprobe.requests.exposure import by_phase, difference, exposure, overlap, parts, union

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(intervals, intervals)
def test_a_difference_is_what_is_in_one_and_not_in_the_other(a, b):
    left = difference(union(a), union(b))
    assert left == union(left)
    seconds = {t for start, end in a for t in range(start, end)} - {t for start, end in b for t in range(start, end)}
    assert {t for start, end in left for t in range(start, end)} == seconds


@given(intervals.filter(any), intervals, st.integers(0, 30), st.integers(30, 60), st.integers(0, 20))
def test_parts_partition_a_life(steps, stall, start, end, fallback):
    steps = [(max(a, start), min(b, end)) for a, b in steps if max(a, start) < min(b, end)]
    if not steps:
        return
    stalled = union(stall)
    executed = sum(b - a for a, b in difference(union(steps), stalled))
    first = min(a for a, _ in steps)
    found = parts((start, end), first, executed, fallback, stalled)

    life = set(range(start, end))
    stop = {t for a, b in stall for t in range(a, b)} & life
    own = {t for a, b in steps for t in range(a, b)} - stop
    queue = {t for t in life if t < first} - stop
    assert found.exposure_ns == len(stop)
    assert found.execution_ns + found.fallback_ns == len(own)
    assert found.fallback_ns == min(fallback, len(own))
    assert found.queue_ns == len(queue)
    assert found.remainder_ns == len(life - stop - own - queue)


def test_what_two_clocks_tell_never_makes_a_part_negative():
    assert parts((100, 200), 90, 500, 9, []) == Parts(0, 91, 0, 9, 0)
    assert parts((100, 200), 300, 500, 0, [(0, 150)]) == Parts(50, 0, 50, 0, 0)


calls = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
    max_size=5,
)


@given(calls, st.integers(0, 30), st.integers(30, 70))
def test_phases_add_up_to_no_more_than_the_stall(raw, start, end):
    known = []
    for begin, length, names in raw:
        share, rest = divmod(length, len(names))
        phases = tuple((name, share + (rest if i == 0 else 0)) for i, name in enumerate(names))
        known.append((begin, begin + length, phases))
    found = by_phase((start, end), sorted(known))
    stalled = overlap(union((a, b) for a, b, _ in known), start, end)
    assert stalled - 5 * 3 <= sum(ns for _, ns in found) <= stalled  # each share is rounded down


def test_a_call_that_lies_in_the_life_gives_its_phases_as_they_are():
    before, after = exposure((0, 100), 50, [(0, 100)], [(10, 20), (60, 80)], [(60, 80, (("llir", 13), ("other", 7)))])
    assert before.phases == ()  # of that call nobody told the phases
    assert after.phases == (("llir", 13), ("other", 7))


def test_a_call_that_was_seen_in_part_gives_its_share():
    before, _ = exposure((50, 100), None, [], [(0, 100)], [(0, 100, (("llir", 60), ("ptx", 40)))])
    assert before.phases == (("llir", 30), ("ptx", 20))
    assert before.queued_ns == 50


def test_what_two_calls_share_counts_for_the_earlier():
    assert by_phase((0, 100), [(0, 10, (("a", 10),)), (5, 25, (("b", 20),))]) == (("a", 10), ("b", 15))
