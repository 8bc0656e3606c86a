"""The ends of launch calls, counted for each thread: in C where it can be built (`launch_end.c`), else in Python.

Knows no Triton. A guard (`rewrite.guard`) calls `Ends.ended` on the way out of a launch while `Watch.any` is not empty.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tritonprobe import native

SOURCE = Path(__file__).with_name("launch_end.c")


class Watch:
    """What is under way, on any thread, that wants to know of the ends of launches. An item for each.

    ``any`` has ops, cold calls and trials; ``slow`` the last two, for which Python has to look at each end: whose each
    is, and what it is.
    """

    __slots__ = ("any", "slow")

    def __init__(self) -> None:
        self.any: list[None] = []
        self.slow: list[tuple[int, object]] = []

    def begin_slow(self, what: object) -> None:
        """`what` is equal to nothing but itself."""
        entry = (threading.get_ident(), what)
        self.any.append(None)  # first, and last at the end: `ops` is never too low
        self.slow.append(entry)

    def end_slow(self, what: object) -> None:
        """In the thread that began it. Twice is once, and none if an interrupt came before it had begun.

        What this thread began later is over as well, though an interrupt may have kept it from saying so.
        """
        mine = [each for each in self.slow if each[0] == threading.get_ident()]
        while any(each[1] is what for each in mine):
            self.slow.remove(mine.pop())
            self.any.pop()

    @property
    def ops(self) -> int:
        """Ops under way on any thread. What a thread counts in C is that of all runtimes of the process."""
        return len(self.any) - len(self.slow)

    def restart(self, ops: int) -> None:
        """In a forked child, which has only the forking thread's."""
        self.slow[:] = [each for each in self.slow if each[0] == threading.get_ident()]
        self.any[:] = [None] * (len(self.slow) + ops)


class _Thread(threading.local):
    ended = 0
    raised = 0
    ops = 0
    has_error = False


class Ends:
    """Each thread's ends, and its ops.

    ``ended(kernel)`` counts one end, or calls ``look(kernel, frame)`` while something slow is under way; the frame is
    the caller's. ``add()`` counts one.
    ``observe()`` begins an op on this thread and returns how many launches of it came back before; ``observed()`` ends
    the innermost one and says whether a launch raised meanwhile. ``came_back()`` returns how many there are now,
    ``ops()`` how many ops are under way. ``add_raised(counted)``: a launch raises, whose end counts or does not.
    ``for_ops`` is what an op that is called in C does instead of `observe` and `observed`; None in Python.
    """

    __slots__ = ("add", "add_raised", "came_back", "ended", "for_ops", "observe", "observed", "ops", "watch")

    ended: Callable[[Any], None]
    observe: Callable[[], int]
    observed: Callable[[], bool]
    add: Callable[[], None]
    add_raised: Callable[[bool], None]
    came_back: Callable[[], int]
    ops: Callable[[], int]
    for_ops: Any | None

    def __init__(self, watch: Watch, look: Callable[[Any, FrameType], None], in_c: bool = True) -> None:
        self.watch = watch
        module: Any = native.load(SOURCE) if in_c else None
        if module is None:
            self._in_python(watch, look)
            return
        self.ended, self.observe, self.observed = module.make(watch.any, watch.slow, look)
        self.add, self.add_raised = module.add, module.add_raised
        self.came_back, self.ops = module.came_back, module.ops
        self.for_ops = module.for_ops

    def _in_python(self, watch: Watch, look: Callable[[Any, FrameType], None]) -> None:
        thread = _Thread()

        def ended(kernel: Any) -> None:
            if watch.slow:
                look(kernel, sys._getframe(1))
            else:
                thread.ended += 1

        def observe() -> int:
            watch.any.append(None)
            thread.ops += 1
            return thread.ended - thread.raised

        def observed() -> bool:
            thread.ops -= 1
            had_error, thread.has_error = thread.has_error, False
            watch.any.pop()
            return had_error

        def add() -> None:
            thread.ended += 1

        def add_raised(counted: bool) -> None:
            thread.raised += counted
            thread.has_error = True

        self.ended, self.observe, self.observed, self.add, self.add_raised = ended, observe, observed, add, add_raised
        self.came_back, self.ops = lambda: thread.ended - thread.raised, lambda: thread.ops
        self.for_ops = None
