"""What one process at a time does in a directory, and there one thread. Knows locks, not what is done."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A lock of the process (lockf), for a forked child must not inherit it; and one for its threads, whom that lets in.
_mine = threading.Lock()


@contextmanager
def alone(path: Path, wait: float = 0.0) -> Iterator[bool]:
    """Whether nobody else holds the lock file `path`, or another such file in a thread of this process.

    Waits no longer than that for who does. Raises OSError.
    """
    until = time.monotonic() + wait
    mine = _mine
    if not mine.acquire(timeout=wait):
        yield False
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not (ours := _locked(handle)) and time.monotonic() < until:
                time.sleep(0.01)
            yield ours
        finally:
            os.close(handle)
    finally:
        mine.release()


def _locked(handle: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _renew() -> None:
    global _mine
    _mine = threading.Lock()


os.register_at_fork(after_in_child=_renew)
