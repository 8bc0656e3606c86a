"""One window: records on, launches seen, records off, records fetched. Knows CUPTI's switches and the window's edges.

The switches are thrown between two launches, by a launching thread itself if one comes along soon: then every launch
lies clearly inside or outside. What cannot be had whole is given up, with a word why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tritonprobe.gpu import launch_log
from tritonprobe.gpu.cupti import Cupti, CuptiError
from tritonprobe.gpu.launch_log import Logged
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import RecordError, Records
from tritonprobe.model import WindowOutcome
from tritonprobe.seen import LaunchSource

MAX_LAUNCHES = 50_000
"""A window with so many launches is ended, and given up."""
GAP_SECONDS = 0.005
SETTLE_SECONDS = 0.05
COLLECT_SECONDS = 2.0
_STEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Taken:
    """What a window saw. Times are those of time.perf_counter_ns."""

    launches: Logged
    records: Records
    edges: Edges
    on_ns: int
    off_ns: int


class Window:
    """To be used once. `cut` ends it early and for nothing, from any thread."""

    def __init__(self, cupti: Cupti, source: LaunchSource) -> None:
        self._cupti = cupti
        self._source = source
        self.log = launch_log.new(MAX_LAUNCHES)
        self._state = threading.RLock()
        self._cut = False
        self._is_on = False
        self._opening: tuple[int, int] | None = None
        self._closing: tuple[int, int] | None = None
        self._on_ns = self._off_ns = 0

    def run(self, seconds: float, wait: Callable[[float], object] = time.sleep) -> Taken | WindowOutcome:
        """Holds the window open for `seconds`. What was seen, or the outcome of a window that was given up.

        Raises CuptiError and RecordError: then something is not as the self-test found it.
        """
        cupti = self._cupti
        cupti.flush()
        cupti.discard()  # what came too late for an earlier window
        cupti.dropped()
        try:
            self._source.open(self.log.append)
            if not self._source.settle(SETTLE_SECONDS):
                return "unsettled"
            self._source.at_gap(self._on, GAP_SECONDS)
            self._hold(seconds, wait)
            self._source.at_gap(self._off, GAP_SECONDS)
            # A launch that left a record and is not in `seen` would pass for another.
            drained = self._source.drained(SETTLE_SECONDS)
        finally:
            self._off()
            self._source.close(self.log.append)
        if not self._cut and (self._opening is None or self._closing is None):
            raise CuptiError("records could not be switched on and off again")
        if self._cut:
            return "cut"
        return self._fetch() if drained else "unsettled"

    def _fetch(self) -> Taken | WindowOutcome:
        cupti = self._cupti
        assert self._opening is not None
        assert self._closing is not None
        whole = cupti.collect(COLLECT_SECONDS, lambda: self._cut)
        if self._cut:
            return "cut"
        records = cupti.records()
        if self._is_full():
            return "overflow"
        if cupti.dropped():
            return "dropped"
        if not whole or bool((records.end == 0).any()):
            return "late"
        edges = Edges(*self._opening, *self._closing)
        return Taken(launch_log.logged(self.log), records, edges, self._on_ns, self._off_ns)

    def cut(self) -> None:
        """A capture or another profiler begins: records are off when this returns."""
        with self._state:
            self._cut = True
            self._off()

    def _is_full(self) -> bool:
        return len(self.log) >= MAX_LAUNCHES

    def _hold(self, seconds: float, wait: Callable[[float], object]) -> None:
        end = time.monotonic() + seconds
        while not (self._cut or self._is_full()) and (left := end - time.monotonic()) > 0:
            wait(min(left, _STEP_SECONDS))

    def _on(self) -> None:
        with self._state:
            if self._cut or self._is_on or self._closing is not None:
                return
            before = self._source.tick()
            self._cupti.enable()
            self._is_on = True
            self._opening = (before, self._source.tick())
            self._on_ns = time.perf_counter_ns()

    def _off(self) -> None:
        with self._state:
            if not self._is_on:
                return
            self._is_on = False
            self._off_ns = time.perf_counter_ns()
            before = self._source.tick()
            self._cupti.disable()
            self._closing = (before, self._source.tick())


__all__ = ["CuptiError", "RecordError", "Taken", "Window"]
