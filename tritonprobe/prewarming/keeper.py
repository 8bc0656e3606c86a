"""Keeps a process's census in a file of its ledger directory, and reads those of all processes together.

A thread writes a second after something was new, so that a process which is killed leaves what it met; launches, whose
counts nobody announces, are written every half minute and at exit. The files are written whole or not at all.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tritonprobe.files import write_whole
from tritonprobe.forks import tell_in_child
from tritonprobe.model import Event
from tritonprobe.shapes.census import Census, CensusError, merge

log = logging.getLogger("tritonprobe")

PATTERN = "census-*.json"
SOON, LATEST = 1.0, 30.0
"""Seconds from something new to its writing, and between writings of launches."""


class CensusKeeper:
    """Writes the census of this process into `directory` from its first cold call on, and at its end."""

    def __init__(self, directory: Path, census: Callable[[], Census], fault: Callable[[str], None]) -> None:
        self._directory = directory
        self._census = census
        self._fault = fault
        self._new = threading.Event()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._file = self._named()
        self._written: str | None = None
        tell_in_child(self)
        atexit.register(self.write)

    def note(self, _event: Event) -> None:
        """Something happened that may be new to the census; made for `Bus.subscribe`."""
        self._new.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._keep, name="tritonprobe-census", daemon=True)
                    self._thread.start()

    def write(self) -> None:
        """Writes what there is now, unless it is there already. Never raises."""
        if self._thread is None:
            return  # nothing was ever met
        try:
            with self._lock:
                text = self._census().text()
                if text != self._written:
                    write_whole(self._file, [text])
                    self._written = text
        except FileNotFoundError:
            log.debug("tritonprobe: %s is gone, and the census with it", self._directory)
        except Exception:
            self._fault("census")

    def after_fork(self) -> None:
        """For a forked child, which has a census of its own."""
        self._lock = threading.RLock()
        self._new = threading.Event()
        self._thread = self._written = None
        self._file = self._named()

    def _keep(self) -> None:
        while True:
            if self._new.wait(LATEST):
                self._new.clear()
                time.sleep(SOON)
            self.write()

    def _named(self) -> Path:
        return self._directory / f"census-{os.getpid()}-{time.time_ns()}.json"


def collect(directory: Path) -> Census:
    """The censuses of all processes that count, or counted, in a directory. One that cannot be read is told of."""
    found = []
    for path in sorted(directory.glob(PATTERN)):
        try:
            found.append(Census.load(path))
        except CensusError as error:
            log.warning("tritonprobe: a census was left out: %s", error)
    return merge(*found)
