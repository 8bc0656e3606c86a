"""What a process does last, be it one of multiprocessing's.

`atexit` alone would miss those that multiprocessing forked, by itself or by its fork server: they run its finalizers,
and then end by ``os._exit``. And what finalizers there are it forgets in a child before that begins its work.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable
from typing import Any

from tritonprobe.forks import tell_in_child

log = logging.getLogger("tritonprobe")

_lasts: list[Callable[[], None]] = []


def at_end(last: Callable[[], None]) -> None:
    """Calls `last` when this process ends by itself, and when a child does that was forked later; perhaps twice."""
    atexit.register(last)
    _lasts.append(last)
    if len(_lasts) == 1:
        _multiprocessing.tell()


class _Multiprocessing:
    """Who has not imported it was not started by it."""

    def __init__(self) -> None:
        self._is_told = False
        tell_in_child(self)

    def tell(self) -> None:
        util: Any = sys.modules.get("multiprocessing.util")
        if util is None or not _lasts:
            return
        if not self._is_told:  # a child that it forks has been told with its parent
            util.register_after_fork(self, _Multiprocessing.begin)
            self._is_told = True
        self.begin()

    def begin(self) -> None:
        """Also called by multiprocessing, in a child that begins its work."""
        sys.modules["multiprocessing.util"].Finalize(None, _end, exitpriority=0)

    def after_fork(self) -> None:
        """For a forked child: it may be multiprocessing's, of which its parent had not heard."""
        self.tell()


_multiprocessing = _Multiprocessing()


def _end() -> None:
    for last in _lasts:
        try:
            last()
        except Exception:
            log.warning("tritonprobe: a fault at the end; the program is not affected", exc_info=True)
