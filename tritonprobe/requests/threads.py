"""Threads told apart by numbers of our own: the system gives the ident of a thread that has ended to a later one."""

from __future__ import annotations

import itertools
import threading

_numbers = itertools.count(1)


class _Local(threading.local):
    def __init__(self) -> None:  # run once in each thread that asks
        self.number = next(_numbers)


_local = _Local()


def this_thread() -> int:
    """The calling thread's number, which no other thread of the process has or will have. Never 0 or below."""
    return _local.number
