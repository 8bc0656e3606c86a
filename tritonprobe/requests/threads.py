"""Threads told apart by numbers of our own: the system gives the ident of a thread that has ended to a later one."""

from __future__ import annotations

import itertools
import threading
import weakref

_numbers = itertools.count(1)


class Life:
    """Something that a thread holds as long as it lives."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    def __init__(self) -> None:  # run once in each thread that asks
        self._life = Life()
        self.both = (next(_numbers), weakref.ref(self._life))


_local = _Local()


def this_thread() -> int:
    """The calling thread's number, which no other thread of the process has or will have. Never 0 or below."""
    return _local.both[0]


def this_life() -> tuple[int, weakref.ref[Life]]:
    """The calling thread's number, and what leads to nothing once it has ended."""
    return _local.both
