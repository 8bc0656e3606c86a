"""Autotune trials as threads' stacks show them: those of no session of ours. Knows `Autotuner._bench`."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from tritonprobe.adapter import stacks


class Strangers:
    """Trials that began before the patches came: threads that were inside of one at a moment, as long as they are."""

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
    tops: dict[int, FrameType | None] = {**stacks.others(), threading.get_ident(): sys._getframe().f_back}
    return frozenset(thread for thread, top in tops.items() if _is_inside(top, code))


def _is_inside(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@functools.cache
def trial_code() -> Any:
    """The code of the function inside `Autotuner._bench` that runs a trial, on whichever thread its benchmark likes."""
    from triton.runtime.autotuner import Autotuner

    bench = inspect.unwrap(Autotuner._bench)
    return next((c for c in bench.__code__.co_consts if getattr(c, "co_name", None) == "kernel_call"), None)


def in_trial() -> bool:
    """Whether the caller's caller runs inside of a launch of a trial."""
    code = trial_code()
    frame: FrameType | None = sys._getframe(2)
    for _ in range(24):
        if frame is None or code is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
