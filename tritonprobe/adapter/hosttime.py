"""Host time of a launch, seen in short windows only: a clock read costs more than everything else we do on a launch.

In a window each loaded `CompiledKernel` gets a timing `_run` in place of Triton's launcher (Triton reads that
attribute for every launch), and afterwards its own back. Outside of windows nothing is left on the launch path. What
is timed is Triton's launcher: from the packed arguments to the enqueued kernel, without binding and lookup. Nothing
is synchronised and nothing is asked of the GPU, so a window is safe while a stream captures.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from tritonprobe.ledger.schema import LAUNCH_HOST
from tritonprobe.ledger.store import Ledger

log = logging.getLogger("tritonprobe")

WINDOW_SECONDS = 0.02
MAX_KERNELS = 4096  # binaries that windows look at; those loaded later are not timed
MAX_SAMPLES = 8192  # kept of one window


class HostTime:
    """Opens a window every now and then, on a thread of its own that sleeps in between."""

    def __init__(self, ledger: Ledger, fault: Callable[[str], None], every: float) -> None:
        """``every`` is the mean number of seconds between windows; 0: never."""
        self._ledger = ledger
        self._fault = fault
        self._every = every
        self._kernels: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._swapped: list[tuple[Any, Any, Any]] = []  # kernel, its own launcher, ours
        self._samples: deque[tuple[str, int]] = deque(maxlen=MAX_SAMPLES)
        self._lock = threading.RLock()
        self._stop: threading.Event | None = None
        _living.add(self)

    def note(self, kernel: Any, name: str) -> None:
        """A binary was loaded: later windows time its launches."""
        with self._lock:
            if len(self._kernels) >= MAX_KERNELS:
                # No callbacks: they would run Python inside any collection.
                self._kernels = {key: found for key, found in self._kernels.items() if found[0]() is not None}
            if len(self._kernels) < MAX_KERNELS:
                self._kernels[id(kernel)] = (weakref.ref(kernel), name)

    def start(self) -> None:
        with self._lock:
            if self._every > 0 and self._stop is None:
                self._stop = threading.Event()
                threading.Thread(target=self._loop, args=(self._stop,), name="tritonprobe-host", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()
        self.close()

    def open(self) -> None:
        """Begins a window; the samples of the one before must have been taken by `close`."""
        with self._lock:
            for ref, name in list(self._kernels.values()):
                kernel = ref()
                if kernel is None or kernel._run is None:
                    continue
                launcher = kernel._run
                timed = self._timed(launcher, name)
                kernel._run = timed
                self._swapped.append((kernel, launcher, timed))

    def close(self) -> None:
        """Ends the window: every kernel has its own launcher again, and the samples are counted."""
        with self._lock:
            while self._swapped:
                kernel, launcher, timed = self._swapped.pop()
                if kernel._run is timed:
                    kernel._run = launcher
            while self._samples:
                name, ns = self._samples.popleft()
                self._ledger.observe(LAUNCH_HOST, (name,), ns / 1e9)

    def _timed(self, launcher: Any, name: str) -> Any:
        keep, clock = self._samples.append, time.perf_counter_ns

        def launch(*args: Any) -> Any:
            start = clock()
            result = launcher(*args)
            keep((name, clock() - start))
            return result

        return launch

    def _loop(self, stop: threading.Event) -> None:
        # A random pause: a fixed one would fall into step with the program's own rhythm.
        while not stop.wait(random.uniform(0.5, 1.5) * self._every):  # noqa: S311  # no secret
            try:
                self.open()
                stop.wait(WINDOW_SECONDS)
            except Exception:
                self._fault("hosttime")
            finally:
                self.close()

    def forked(self) -> None:
        """The child has no thread of ours, and may have been forked inside a window."""
        self._lock = threading.RLock()
        running, self._stop = self._stop is not None, None
        self._samples.clear()
        self.close()
        if running:
            self.start()


_living: weakref.WeakSet[HostTime] = weakref.WeakSet()


def _after_fork() -> None:
    for windows in list(_living):
        windows.forked()


os.register_at_fork(after_in_child=_after_fork)
