"""Forked children: who has to be told that the process is a new one. Knows nothing else of tritonprobe.

A child has one thread, the one that forked, and copies of all locks: one that another thread held is never released
there. So whatever has a lock, or remembers what threads do, is told first thing in the child, the older before the
younger (a runtime may use its ledger), and takes a new lock.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger("tritonprobe")


class Forked(Protocol):
    """What has to be told."""

    def after_fork(self) -> None:
        """Called in a forked child, which has no thread but the caller's."""


_living: weakref.WeakKeyDictionary[Forked, None] = weakref.WeakKeyDictionary()  # unlike a WeakSet, it has an order


def tell_in_child(owner: Forked) -> None:
    """From now on, and as long as it lives, `owner` is told in each forked child."""
    _living[owner] = None


def _after_fork() -> None:
    for owner in list(_living):
        try:
            owner.after_fork()
        except Exception:
            log.warning("tritonprobe: a fault in a forked child; the program is not affected", exc_info=True)


os.register_at_fork(after_in_child=_after_fork)
