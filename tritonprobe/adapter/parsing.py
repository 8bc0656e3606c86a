"""While tritonprobe compiles in threads, kernels are parsed by one thread at a time. Touches `JITCallable.parse`.

Up to Python 3.11.7 `ast.parse` keeps the depth that it has come to in one place for all threads of the process
(python/cpython#106905). When a garbage collection gives the interpreter lock away in the middle of it, for a finaliser
or a callback, another thread's parse spoils that figure, and SystemError is raised. The compile fails; and a kernel
whose cache key Triton was making keeps the unfinished one for good. Parsing holds the interpreter lock anyway, so that
a turn costs no time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tritonprobe.adapter.patching import Patches
from tritonprobe.forks import tell_in_child


class Parsing:
    """Takes turns while anybody is within `in_turn`, and leaves no trace after the last."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._within = 0
        self._lock = threading.Lock()  # of these two
        self._turn = threading.RLock()
        tell_in_child(self)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Within it each thread that parses a kernel, the program's too, waits until no other one does."""
        from triton.runtime.jit import JITCallable

        with self._lock:
            self._within += 1
            if self._within == 1:
                self._patches.replace(JITCallable, "parse", self._parse)
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if self._within == 0:
                    self._patches.undo()

    def _parse(self, original: Any) -> Any:
        @functools.wraps(original)
        def parse(kernel: Any) -> Any:
            with self._turn:
                return original(kernel)

        return parse

    def after_fork(self) -> None:
        """For a forked child: no lock is held by a thread that is not there."""
        self._lock, self._turn = threading.Lock(), threading.RLock()
