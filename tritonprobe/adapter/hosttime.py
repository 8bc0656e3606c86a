"""Host time of a launch, sampled in short windows: a clock read costs more than everything else we do on a launch.

What is timed is Triton's launcher: from the packed arguments to the enqueued kernel, without binding and lookup. The
windows are those of `windows`; nothing is synchronised, so they are safe while a stream captures.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable

from tritonprobe.adapter.windows import LaunchWindows
from tritonprobe.ledger.schema import LAUNCH_HOST
from tritonprobe.ledger.store import Ledger
from tritonprobe.seen import Seen

WINDOW_SECONDS = 0.02
MAX_SAMPLES = 8192  # kept of one window


class HostTime:
    """Opens a window every now and then, on a thread of its own that sleeps in between."""

    def __init__(self, ledger: Ledger, fault: Callable[[str], None], every: float, windows: LaunchWindows) -> None:
        """``every`` is the mean number of seconds between windows; 0: never."""
        self._ledger = ledger
        self._fault = fault
        self._every = every
        self._windows = windows
        self._seen: deque[Seen] = deque(maxlen=MAX_SAMPLES)
        self._sink = self._seen.append
        self._lock = threading.RLock()
        self._stop: threading.Event | None = None
        _living.add(self)

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
        self._windows.open(self._sink)

    def close(self) -> None:
        """Ends the window, and counts its samples."""
        self._windows.close(self._sink)
        with self._lock:
            while self._seen:
                seen = self._seen.popleft()
                if seen.returned:
                    self._ledger.observe(LAUNCH_HOST, (seen.binary.kernel_name,), (seen.end_ns - seen.start_ns) / 1e9)

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
        self._seen.clear()
        if running:
            self.start()


_living: weakref.WeakSet[HostTime] = weakref.WeakSet()


def _after_fork() -> None:
    for windows in list(_living):
        windows.forked()


os.register_at_fork(after_in_child=_after_fork)
