"""The kill switch of a running program: `tritonprobe off DIR` takes every patch back in all processes of a directory.

A process that is watched, and keeps its numbers in a directory, has one thread that sleeps. At each wake it asks the
file system for the directory's time of change, and for nothing else while that stands. Switched off, the thread is all
that is left of us; it stays, so that `tritonprobe on` finds somebody. The same thread hears that the engine is ready.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tritonprobe.forks import tell_in_child
from tritonprobe.ledger import signs

log = logging.getLogger("tritonprobe")

WAKE_SECONDS = 0.25
TICK_NS = 50_000_000
"""A directory that changed so short a time ago may change once more without another time of change."""


class Watched(Protocol):
    """The runtime, as the switch sees it."""

    off: bool

    @property
    def ledger_file(self) -> Path | None: ...
    def watch(self, everything: bool) -> None: ...
    def unwatch(self, keep_device: bool = False) -> list[str]: ...
    def follow_ready(self) -> None: ...
    def fault(self, part: str) -> None: ...


class Switch:
    """One runtime's follower of its directory."""

    def __init__(self, runtime: Watched, directory: Path) -> None:
        self._runtime = runtime
        self._directory = directory
        self._seen: int | None = None
        self._done: signs.Asked | None = None
        self._lock = threading.RLock()
        self._stop: threading.Event | None = None
        tell_in_child(self)

    def start(self) -> bool:
        """Follows from now on; whether the program is to be watched at present."""
        with self._lock:
            asked = signs.asked(self._directory)
            off = asked is not None and asked.state == "off"
            if asked is not None and self._done != asked:  # "on", too: whoever asked may still wait for each process
                self._runtime.off = self._runtime.off or off
                self._answer(asked, "")
            self._done = asked
            if self._stop is None:
                self._begin()
            return not off

    def stop(self) -> None:
        """Follows no more."""
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()

    def look(self) -> None:
        """Does what was asked for since the last look, if anything."""
        with self._lock:
            asked = signs.asked(self._directory)
            if asked is not None and asked != self._done:
                left = self._do(asked.state)
                self._done = asked  # only now: a child forked in between does it itself
                self._answer(asked, left)
        self._runtime.follow_ready()

    def after_fork(self) -> None:
        """For a forked child, which has no thread of ours."""
        self._lock = threading.RLock()
        if self._stop is not None:
            if self._done is not None:
                self._tell(self._done, "")
            self._begin()

    def _begin(self) -> None:
        self._stop = threading.Event()
        threading.Thread(target=self._loop, args=(self._stop,), name="tritonprobe-switch", daemon=True).start()

    def _loop(self, stop: threading.Event) -> None:
        while not stop.wait(WAKE_SECONDS):
            changed = signs.changed(self._directory)
            if changed is None or changed == self._seen:
                continue
            try:
                self.look()
            except Exception:
                self._runtime.fault("switch")
            if time.time_ns() - changed > TICK_NS:
                self._seen = changed

    def _do(self, state: signs.State) -> str:
        """Returns what could not be done, in words."""
        try:
            return ", ".join(switch(self._runtime, state))
        except Exception as error:
            self._runtime.fault("switch")
            return f"failed: {error!r}"

    def _answer(self, asked: signs.Asked, left: str) -> None:
        log.info("tritonprobe: switched %s%s", asked.state, f"; {left}" if left else "")
        self._tell(asked, left)

    def _tell(self, asked: signs.Asked, left: str) -> None:
        ledger = self._runtime.ledger_file
        if ledger is not None:  # else nobody sees that this process counts
            with suppress(OSError):  # whoever asked will miss us, and say so
                signs.answer(self._directory, signs.Answer(ledger.stem, asked.token, left))


def switch(runtime: Watched, state: signs.State) -> list[str]:
    """What each process does when it is switched. Returns the names that others had wrapped, and that pass through."""
    if state == "on":
        runtime.watch(everything=False)
        return []
    runtime.off = True
    return runtime.unwatch(keep_device=True)


_switches: weakref.WeakKeyDictionary[Watched, Switch] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def follow(runtime: Watched) -> bool:
    """Lets the runtime follow its directory, if it has one; whether it is to be watched at present."""
    ledger = runtime.ledger_file
    if ledger is None:
        return True
    with _lock:
        switch = _switches.get(runtime)
        if switch is None:
            switch = _switches[runtime] = Switch(runtime, ledger.parent)
    return switch.start()


def unfollow(runtime: Watched) -> None:
    """The program itself wants nobody: nothing is left of us, and `tritonprobe on` will not find it."""
    switch = _switches.get(runtime)
    if switch is not None:
        switch.stop()
