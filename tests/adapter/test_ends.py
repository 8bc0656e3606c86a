"""The ends of launch calls, counted for each thread: the C and the Python implementation say the same."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe import native
from tritonprobe.adapter.ends import Ends, Watch

in_c = pytest.param(
    True, id="c", marks=pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")
)
implementations = pytest.mark.parametrize("in_c", [in_c, pytest.param(False, id="python")])


def nothing(kernel: Any, frame: FrameType) -> None: ...


@implementations
def test_an_op_sees_the_launches_of_its_thread_that_came_back(in_c: bool) -> None:
    ends = Ends(Watch(), nothing, in_c)
    before = ends.observe()
    other = threading.Thread(target=ends.ended, args=("kernel",))
    other.start()
    other.join()
    assert ends.came_back() == before
    ends.ended("kernel")
    assert ends.came_back() == before + 1
    assert ends.observed() is False


@implementations
def test_a_launch_that_raised_did_not_come_back(in_c: bool) -> None:
    ends = Ends(Watch(), nothing, in_c)
    before = ends.observe()
    ends.add_raised(True)
    ends.ended("kernel")
    assert ends.came_back() == before
    ends.add_raised(False)  # one that has no end
    assert ends.came_back() == before
    assert ends.observed() is True
    ends.observe()
    assert ends.observed() is False, "that was told"


@implementations
def test_while_something_slow_is_under_way_python_looks_and_gets_the_frame(in_c: bool) -> None:
    watch, seen = Watch(), []
    ends = Ends(watch, lambda kernel, frame: seen.append((kernel, frame)), in_c)
    before = ends.observe()
    watch.begin_slow(call := object())
    ends.ended("kernel")
    assert seen == [("kernel", sys._getframe())]
    assert ends.came_back() == before, "who looks, counts"
    watch.end_slow(call)
    ends.ended("kernel")
    assert len(seen) == 1
    ends.observed()
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
    ends.observe()
    watch.any += [None] * 5  # ops of other threads
    another = threading.Thread(target=watch.begin_slow, args=(object(),))
    another.start()
    another.join()
    watch.begin_slow(mine := object())
    watch.restart(ends.ops())
    assert (len(watch.any), watch.slow) == (2, [(threading.get_ident(), mine)])
    watch.end_slow(mine)
    ends.observed()
    assert (watch.any, watch.slow, ends.ops()) == ([], [], 0)


def test_what_ends_without_having_begun_ends_nobody_elses() -> None:
    watch = Watch()
    watch.begin_slow(call := object())
    watch.end_slow(object())
    assert len(watch.any) == len(watch.slow) == 1
    watch.begin_slow(object())  # it is interrupted, and never ends
    for _ in range(2):
        watch.end_slow(call)
    assert watch.any == watch.slow == []


@implementations
@given(st.lists(st.sampled_from(["ended", "raised", "add", "observe", "observed"]), max_size=40))
def test_nested_ops_each_see_what_came_back_since_they_began(in_c: bool, steps: list[str]) -> None:
    ends = Ends(Watch(), nothing, in_c)
    begun: list[tuple[int, int]] = []
    returned = 0
    for step in steps:
        if step == "observe":
            begun.append((ends.observe(), returned))
        elif step == "observed" and begun:
            before, at = begun.pop()
            assert ends.came_back() - before == returned - at
            ends.observed()
        elif step == "raised":
            ends.add_raised(True)
            ends.ended("kernel")
        elif step in ("ended", "add"):
            returned += 1
            ends.ended("kernel") if step == "ended" else ends.add()
    assert ends.ops() == len(begun)
    for _ in begun:
        ends.observed()


@implementations
def test_ops_are_those_of_their_own_watch(in_c: bool) -> None:
    """A program may have several runtimes: the error of a launch is remembered where an op will forget it."""
    mine, another = Watch(), Watch()
    ends = Ends(mine, nothing, in_c)
    ends.observe()
    for watch in (mine, another):
        watch.begin_slow(watch)
    assert (mine.ops, another.ops) == (1, 0)
    for watch in (mine, another):
        watch.end_slow(watch)
    ends.observed()
    assert mine.ops == 0
