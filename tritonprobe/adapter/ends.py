"""The ends of launch calls, counted for each thread: in C where it can be built (`launch_end.c`), else in Python.

Knows no Triton. A guard (`rewrite.guard`) calls `Ends.ended` on the way out of a launch while `Watch.any` is not empty.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tritonprobe import native

SOURCE = Path(__file__).with_name("launch_end.c")


class Begun:
    """Something that a thread began and has not ended yet. Equal to nothing but itself."""

    __slots__ = ("thread", "what")

    def __init__(self, what: object = None) -> None:
        """Of an op that is called in Python `what` is None."""
        self.thread = threading.get_ident()
        self.what = what


class Watch:
    """What is under way, on any thread, that wants to know of the ends of launches.

    ``any`` has ops, cold calls and trials: a `Begun` for each, None for an op that is called in C. ``slow`` has the
    last two, for which Python has to look at each end: whose each is, and what it is.

    A signal's handler may raise wherever Python calls or is called. Whoever began something ends it in any case, and a
    beginning that was interrupted half-way is ended as a whole.
    """

    __slots__ = ("any", "slow")

    def __init__(self) -> None:
        self.any: list[Begun | None] = []
        self.slow: list[Begun] = []

    def begin_slow(self, what: object) -> None:
        """`what` is equal to nothing but itself."""
        begun = Begun(what)
        self.any.append(begun)  # first, and last at the end: `ops` is never too low
        self.slow.append(begun)

    def end_slow(self, what: object) -> None:
        """In the thread that began it. Twice is once, and none if an interrupt came before it had begun.

        What this thread began later is over as well, though an interrupt may have kept it from saying so.
        """
        mine = self._of(threading.get_ident())
        while any(each.what is what for each in mine):
            over = mine.pop()
            if over in self.slow:
                self.slow.remove(over)
            self.any.remove(over)

    def abandon(self, what: object) -> None:
        """For any thread: the one that began it has ended, and will not say so."""
        for each in [each for each in self.slow[:] if each.what is what]:
            with contextlib.suppress(ValueError):  # another thread has found out, too
                self.slow.remove(each)
                self.any.remove(each)

    @property
    def ops(self) -> int:
        """Ops under way on any thread. What a thread counts in C is that of all runtimes of the process."""
        return len(self.any) - len(self.slow)

    def ops_of(self, thread: int) -> int:
        """Ops of that thread which are called in Python."""
        return sum(each.what is None for each in self._of(thread))

    def restart(self, ops_in_c: int) -> None:
        """In a forked child, which has only the forking thread's."""
        in_c = min(self.any.count(None), ops_in_c)
        mine = self._of(threading.get_ident())
        self.slow[:] = [each for each in mine if each.what is not None]
        self.any[:] = [*mine, *[None] * in_c]

    def _of(self, thread: int) -> list[Begun]:
        # Of a copy: other threads begin and end meanwhile.
        return [each for each in self.any[:] if each is not None and each.thread == thread]


class _Thread(threading.local):
    ended = 0
    raised = 0
    has_error = False


class Ends:
    """Each thread's ends, and its ops.

    ``ended(kernel)`` counts one end, or calls ``look(kernel, frame)`` while something slow is under way; the frame is
    the caller's. ``add()`` counts one. ``came_back()`` returns how many launches of this thread came back.
    ``add_raised(counted)``: a launch raises, whose end counts or does not; ``had_error()`` says once whether one did.
    ``for_ops`` is what an op that is called in C uses, ``ops_in_c()`` how many of those are under way on this thread.
    In Python the one is None, the other 0.
    """

    __slots__ = ("add", "add_raised", "came_back", "ended", "for_ops", "had_error", "ops_in_c", "watch")

    ended: Callable[[Any], None]
    add: Callable[[], None]
    add_raised: Callable[[bool], None]
    came_back: Callable[[], int]
    had_error: Callable[[], bool]
    ops_in_c: Callable[[], int]
    for_ops: Any | None

    def __init__(self, watch: Watch, look: Callable[[Any, FrameType], None], in_c: bool = True) -> None:
        self.watch = watch
        module: Any = native.load(SOURCE) if in_c else None
        if module is None:
            self._in_python(watch, look)
            return
        self.ended = module.make(watch.slow, look)
        self.add, self.add_raised, self.had_error = module.add, module.add_raised, module.had_error
        self.came_back, self.ops_in_c = module.came_back, module.ops
        self.for_ops = module.for_ops

    def ops(self) -> int:
        """Ops under way on this thread."""
        return self.ops_in_c() + self.watch.ops_of(threading.get_ident())

    def _in_python(self, watch: Watch, look: Callable[[Any, FrameType], None]) -> None:
        thread = _Thread()

        def ended(kernel: Any) -> None:
            if watch.slow:
                look(kernel, sys._getframe(1))
            else:
                thread.ended += 1

        def add() -> None:
            thread.ended += 1

        def add_raised(counted: bool) -> None:
            thread.raised += counted
            thread.has_error = True

        def had_error() -> bool:
            had, thread.has_error = thread.has_error, False
            return had

        self.ended, self.add, self.add_raised, self.had_error = ended, add, add_raised, had_error
        self.came_back, self.ops_in_c, self.for_ops = lambda: thread.ended - thread.raised, int, None
