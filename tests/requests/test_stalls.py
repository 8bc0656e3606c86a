"""The stall: whose cold calls count, and what happens at the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.requests import stalls
from tritonprobe.requests.exposure import overlap, union
from tritonprobe.requests.stalls import MAX_STALLS, Stalls

ENGINE, HELPER, SECOND_ENGINE = 11, 22, 33


def test_without_steps_every_thread_counts():
    s = Stalls(tuple)
    s.add(0, 10, ENGINE, needed_from=0)
    s.add(20, 30, HELPER, needed_from=0)
    assert s.between(0, 100) == [(0, 10), (20, 30)]


def test_once_a_thread_has_run_a_step_only_such_threads_count():
    s = Stalls(tuple)
    s.add(0, 10, ENGINE, needed_from=0)
    s.add(20, 30, HELPER, needed_from=0)
    s.add(40, 50, SECOND_ENGINE, needed_from=0)
    s.serve(ENGINE)
    assert s.between(0, 100) == [(0, 10)]
    assert s.between(0, 100, everyone=True) == [(0, 10), (20, 30), (40, 50)]
    s.serve(SECOND_ENGINE)
    assert s.between(0, 100) == [(0, 10), (40, 50)]


def test_calls_in_progress_last_until_now():
    s = Stalls(lambda: [(60, ENGINE), (70, HELPER)])
    assert s.between(0, 100) == [(60, 100)]
    s.serve(HELPER)
    assert s.between(0, 100) == [(70, 100)]


def test_a_call_that_is_both_in_progress_and_finished_is_counted_once():
    s = Stalls(lambda: [(60, ENGINE)])
    s.add(60, 90, ENGINE, needed_from=0)
    assert s.between(0, 90) == [(60, 90)]


def test_only_what_lies_between_is_given():
    s = Stalls(tuple)
    for start, end in ((0, 10), (15, 40), (80, 120), (200, 300)):
        s.add(start, end, ENGINE, needed_from=0)
    assert s.between(20, 100) == [(20, 40), (80, 100)]


def test_what_ended_before_it_could_be_needed_is_forgotten():
    s = Stalls(tuple)
    s.add(0, 10, ENGINE, needed_from=0)
    s.add(20, 30, ENGINE, needed_from=10)
    assert s.between(0, 100) == [(20, 30)]


def test_ends_may_be_reported_out_of_order():
    s = Stalls(tuple)
    for start, end in ((50, 60), (0, 10), (20, 45)):
        s.add(start, end, ENGINE, needed_from=0)
    assert s.between(0, 100) == [(0, 10), (20, 45), (50, 60)]


def test_beyond_the_bound_the_stall_grows_but_never_shrinks():
    s = Stalls(tuple)
    s.serve(ENGINE)
    every = [(10 * i, 10 * i + 5 + i % 3) for i in range(2 * MAX_STALLS)]
    for start, end in every:
        s.add(start, end, ENGINE, needed_from=0)
    kept = s.between(0, 10**9)
    assert len(kept) <= MAX_STALLS
    assert all(overlap(kept, start, end) == end - start for start, end in every[:: MAX_STALLS // 50])
    assert overlap(kept, 0, 10**9) > overlap(union(every), 0, 10**9)


def test_what_counted_when_it_was_merged_goes_on_counting():
    s = Stalls(tuple)
    for i in range(MAX_STALLS + 1):
        s.add(10 * i, 10 * i + 5, HELPER, needed_from=0)
    s.serve(ENGINE)
    assert overlap(s.between(0, 10**9), 0, 10**9) >= 5 * (MAX_STALLS + 1)


def test_the_number_of_serving_threads_is_bounded(monkeypatch):
    """A server with a new thread for each step goes on: the first are forgotten, and serve again by a further step."""
    monkeypatch.setattr(stalls, "MAX_THREADS", 2)
    s = Stalls(tuple)
    for thread in (1, 2, 3):
        s.serve(thread)
        s.add(10 * thread, 10 * thread + 5, thread, needed_from=0)
    assert s.between(0, 100) == [(20, 25), (30, 35)]
    s.serve(1)
    assert s.between(0, 100) == [(10, 15), (30, 35)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.sampled_from([1, 2])), max_size=20))
def test_the_stall_is_the_union_over_serving_threads(calls):
    s = Stalls(tuple)
    s.serve(1)
    for start, length, thread in calls:
        s.add(start, start + length, thread, needed_from=-1)
    assert s.between(0, 100) == union((start, start + n) for start, n, thread in calls if thread == 1)
