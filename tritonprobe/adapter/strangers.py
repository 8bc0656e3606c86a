"""Autotune trials that began before the patches came: no session says what they are. Knows `Autotuner._bench`."""

from __future__ import annotations

import inspect
import sys
from types import FrameType


class Strangers:
    """Threads that were inside of a trial at one moment, as long as they are."""

    def __init__(self) -> None:
        self._threads: frozenset[int] = frozenset()

    def meet(self) -> None:
        """The moment is now."""
        self._threads = _in_trials()

    def left(self) -> bool:
        """Whether one is still at it. For nothing where there never was one."""
        if self._threads:
            self._threads &= _in_trials()
        return bool(self._threads)


def _in_trials() -> frozenset[int]:
    """Threads that are inside of `Autotuner._bench`, be it in a launch or between two of them."""
    from triton.runtime.autotuner import Autotuner

    code = inspect.unwrap(Autotuner._bench).__code__
    found = set()
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is not None:
            found.add(thread)
    return frozenset(found)
