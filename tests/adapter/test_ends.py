"""The ends of launch calls, counted for each thread: the C and the Python implementation say the same."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapter.conftest import interrupted
from tritonprobe import native
from tritonprobe.adapter.ends import Begun, Ends, Watch

in_c = pytest.param(
    True, id="c", marks=pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")
)
implementations = pytest.mark.parametrize("in_c", [in_c, pytest.param(False, id="python")])


def nothing(kernel: Any, frame: FrameType) -> None: ...


def begin(ends: Ends) -> Begun:
    """An op begins, as one that is called in Python does."""
    ends.watch.any.append(op := Begun())
    return op


@implementations
def test_an_op_sees_the_launches_of_its_thread_that_came_back(in_c: bool) -> None:
    ends = Ends(Watch(), nothing, in_c)
    before = ends.came_back()
    other = threading.Thread(target=ends.ended, args=("kernel",))
    other.start()
    other.join()
    assert ends.came_back() == before
    ends.ended("kernel")
    assert ends.came_back() == before + 1
    assert ends.had_error() is False


@implementations
def test_a_launch_that_raised_did_not_come_back(in_c: bool) -> None:
    ends = Ends(Watch(), nothing, in_c)
    before = ends.came_back()
    ends.add_raised(True)
    ends.ended("kernel")
    assert ends.came_back() == before
    ends.add_raised(False)  # one that has no end
    assert ends.came_back() == before
    assert ends.had_error() is True
    assert ends.had_error() is False, "that was told"


@implementations
def test_while_something_slow_is_under_way_python_looks_and_gets_the_frame(in_c: bool) -> None:
    watch, seen = Watch(), []
    ends = Ends(watch, lambda kernel, frame: seen.append((kernel, frame)), in_c)
    before = ends.came_back()
    watch.begin_slow(call := object())
    ends.ended("kernel")
    assert seen == [("kernel", sys._getframe())]
    assert ends.came_back() == before, "who looks, counts"
    watch.end_slow(call)
    ends.ended("kernel")
    assert len(seen) == 1
    assert watch.any == watch.slow == []


@implementations
def test_a_look_that_raises_is_not_swallowed_here(in_c: bool) -> None:
    def look(kernel: Any, frame: FrameType) -> None:
        raise KeyError(kernel)

    watch = Watch()
    watch.begin_slow(object())
    with pytest.raises(KeyError, match="kernel"):
        Ends(watch, look, in_c).ended("kernel")


@implementations
def test_a_forked_child_goes_on_with_its_own(in_c: bool) -> None:
    watch = Watch()
    ends = Ends(watch, nothing, in_c)
    op = begin(ends)
    watch.any += [None] * 5  # ops of all threads that are called in C
    for beginning, what in ((begin, ends), (watch.begin_slow, object())):
        another = threading.Thread(target=beginning, args=(what,))
        another.start()
        another.join()
    watch.begin_slow(mine := object())
    watch.restart(2)  # are this thread's
    assert [each.what for each in watch.slow] == [mine]
    assert watch.any == [op, *watch.slow, None, None]
    assert ends.ops() == 1, "in Python"
    watch.end_slow(mine)
    watch.any.remove(op)
    assert (watch.any, watch.slow, ends.ops()) == ([None, None], [], 0)


def test_what_ends_without_having_begun_ends_nobody_elses() -> None:
    watch = Watch()
    watch.begin_slow(call := object())
    watch.end_slow(object())
    assert len(watch.any) == len(watch.slow) == 1
    watch.begin_slow(object())  # it is interrupted, and never ends
    for _ in range(2):
        watch.end_slow(call)
    assert watch.any == watch.slow == []


def test_wherever_something_slow_is_interrupted_nothing_of_it_is_left() -> None:
    """As tuning and cold calls do it: what is interrupted as it ends is over with what holds it."""
    watch, outer, inner = Watch(), object(), object()
    another = threading.Thread(target=watch.begin_slow, args=(object(),))
    another.start()
    another.join()
    theirs = watch.slow[:]

    def nested() -> None:
        try:
            watch.begin_slow(inner)
        finally:
            watch.end_slow(inner)

    event = 1
    while True:
        was = interrupted(lambda: watch.begin_slow(outer), event, "begin_slow", "__init__")
        if not was:
            was = interrupted(nested, event, "begin_slow", "__init__", "end_slow", "_of")
        watch.end_slow(outer)
        assert watch.any == watch.slow == theirs
        if not was:
            break
        event += 1
    assert event > 8


@implementations
@given(st.lists(st.sampled_from(["ended", "raised", "add", "begins", "ends"]), max_size=40))
def test_nested_ops_each_see_what_came_back_since_they_began(in_c: bool, steps: list[str]) -> None:
    ends = Ends(Watch(), nothing, in_c)
    begun: list[tuple[Begun, int, int]] = []
    returned = 0
    for step in steps:
        if step == "begins":
            begun.append((begin(ends), ends.came_back(), returned))
        elif step == "ends" and begun:
            op, before, at = begun.pop()
            assert ends.came_back() - before == returned - at
            ends.watch.any.remove(op)
        elif step == "raised":
            ends.add_raised(True)
            ends.ended("kernel")
        elif step in ("ended", "add"):
            returned += 1
            ends.ended("kernel") if step == "ended" else ends.add()
    assert ends.ops() == len(begun)


@implementations
def test_ops_are_those_of_their_own_watch(in_c: bool) -> None:
    """A program may have several runtimes: the error of a launch is remembered where an op will forget it."""
    mine, another = Watch(), Watch()
    begin(Ends(mine, nothing, in_c))
    for watch in (mine, another):
        watch.begin_slow(watch)
    assert (mine.ops, another.ops) == (1, 0)
    for watch in (mine, another):
        watch.end_slow(watch)
    assert (mine.ops, another.ops) == (1, 0)
