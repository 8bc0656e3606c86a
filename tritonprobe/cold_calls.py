"""Cold calls of this process: those in progress, and what happens when one ends. Knows no Triton.

Requests hear of an end first, then whoever listens, and last the incident's line in the log: the first may wait for it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tritonprobe.bus import Bus
from tritonprobe.incidents import Incidents
from tritonprobe.ledger import Ledger
from tritonprobe.ledger.schema import COLD_IN_PROGRESS
from tritonprobe.model import OTHER, ColdCall
from tritonprobe.requests.live import Requests
from tritonprobe.requests.threads import Life, this_life, this_thread
from tritonprobe.settings import Settings

if TYPE_CHECKING:
    from tritonprobe.adapter.calls import OpenCall

TELLING_NS = 1_000_000
"""What it takes to tell of a cold call is part of the stall from here on; below, it is as if nothing had been told."""


class Owner(Protocol):
    """The runtime, as its cold calls see it."""

    settings: Settings
    ledger: Ledger
    bus: Bus
    live: Requests
    ready_unix_ns: int | None

    @property
    def rank(self) -> str: ...
    def follow_ready(self) -> None: ...
    def describe(self) -> None: ...
    def fault(self, part: str) -> None: ...


class ColdCalls:
    """One runtime's."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._incidents = Incidents(owner.settings.on_cold_after_ready)
        # Number of a thread -> its cold call in progress, and what leads to nothing once the thread has ended.
        self._open: dict[int, tuple[OpenCall, weakref.ref[Life]]] = {}
        self._lock = threading.RLock()
        self._described = False

    def opened(self, call: OpenCall) -> None:
        try:
            thread, life = this_life()
            self._open[thread] = (call, life)
            self.show_oldest()
        except Exception:
            self._owner.fault("calls")

    def closed(self, cold: ColdCall) -> None:
        """The end of a cold call of this thread. Requests hear of it before it leaves the list of those in progress."""
        owner, thread = self._owner, this_thread()
        try:
            if cold.error is not None and cold.tier == "memory":
                return  # it raised before it looked for anything: a launch error, and no cold call
            # A trial on a thread of its benchmark's own is part of the tuning that waits for it.
            replayed = cold.kind == "prewarm"
            background = cold.mode == "trial" or replayed or not owner.live.is_serving(thread)
            owner.follow_ready()
            ready = owner.ready_unix_ns
            incident = ready is not None and cold.unix_ns + cold.wall_ns >= ready
            cold = dataclasses.replace(cold, after_ready=incident, background=background)
            if not replayed:
                owner.live.stall(cold.start_ns, cold.end_ns, thread, cold.phases)
            owner.bus.publish(cold)
            if not self._described:
                self._described = True
                owner.describe()  # the device is known now
        except Exception:
            owner.fault("calls")
        finally:
            self._open.pop(thread, None)
            try:
                self.show_oldest()
            except Exception:
                owner.fault("calls")
        try:
            if cold.after_ready and not cold.background:
                self._incidents.happened(cold)
        finally:
            self._told(cold, thread)

    def _told(self, cold: ColdCall, thread: int) -> None:
        """Requests also waited while we told of a cold call: a line in a log may cost a turn of the interpreter."""
        try:
            told = time.monotonic_ns()
            if told - cold.end_ns >= TELLING_NS and not cold.background:
                self._owner.live.stall(cold.end_ns, told, thread, ((OTHER, told - cold.end_ns),))
        except Exception:
            self._owner.fault("calls")

    def stalls(self) -> list[tuple[int, int]]:
        """When each one in progress began, and its thread."""
        return [(call.start, thread) for thread, call in self._living()] if self._open else []

    def _living(self) -> list[tuple[int, OpenCall]]:
        """Those in progress. One whose thread has ended will never end: it holds up nobody, and is in no figure."""
        found = []
        for thread, (call, life) in list(self._open.items()):
            if life() is not None:
                found.append((thread, call))
            elif self._open.pop(thread, None) is not None:
                call.let_go()
                self._owner.fault("cold_call")
                self.show_oldest()
        return found

    def show_oldest(self) -> None:
        """Writes since when the oldest in progress is, into the ledger and for the processes of the same engine."""
        owner = self._owner
        with self._lock:  # else a thread may write what another has just made untrue
            starts = [call.unix for _, call in self._living()]
            owner.ledger.set(COLD_IN_PROGRESS, (owner.rank,), min(starts) / 1e9 if starts else None)
            owner.live.show_open()

    def another_rank(self, take: Callable[[], None]) -> None:
        """The owner's rank is another one once `take` has been called: what stood under the old one goes."""
        with self._lock:
            self._owner.ledger.set(COLD_IN_PROGRESS, (self._owner.rank,), None)
            take()
            self.show_oldest()

    def after_fork(self) -> None:
        """For a forked child: what is in progress is so in its parent, and its copy of the lock may be held."""
        self._lock = threading.RLock()
        self._open.clear()
        self.show_oldest()
