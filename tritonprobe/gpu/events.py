"""GPU time by pairs of CUDA events, where there is no CUPTI: also AMD's GPUs. An upper bound.

An event pair around a short kernel measures the host's launch latency (57 us for a kernel of 0.9 us was seen), so these
times are told apart by their method. A few launches of a window get a pair from a pool; a stream that captures gets
none; the pairs are read later, when no capture is under way.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tritonprobe.gpu.analysis import Found
from tritonprobe.gpu.attribution import Attribution, Key
from tritonprobe.gpu.clock import Looked
from tritonprobe.gpu.driver import Driver, DriverError
from tritonprobe.gpu.publish import Published
from tritonprobe.gpu.spans import NOTHING, Spans, all_in_one
from tritonprobe.seen import Label, LaunchSource, Seen

log = logging.getLogger("tritonprobe")

PAIRS = 32
"""Pairs of events; so many launches of a window are timed at most."""
MAX_LAUNCHES = 50_000
"""Launches of a window that are kept."""
READ_SECONDS = 2.0

Pair = tuple[Any, Any]


class EventClock:
    """Times some launches of a window by events on their stream."""

    method = "event"

    def __init__(self, why: str, source: LaunchSource, published: Published, fault: Callable[[str], None]) -> None:
        self.why = f"an upper bound for short kernels; {why}"
        self._source = source
        self._published = published
        self._fault = fault
        self._torch: Any = sys.modules["torch"]
        self._free: list[Pair] = []
        self._made = 0
        self._seen: list[Seen] | None = None  # no window is open
        self._cut = False
        self._sampling = 1  # one launch in so many gets a pair
        self._turn = 0
        self._reading = threading.RLock()  # never while a capture begins

    def before(self, stream: int) -> Pair | None:  # noqa: ARG002  # torch's current stream is the launch's
        """Called right before a launch, on its thread."""
        try:
            self._turn += 1
            if self._cut or self._turn % self._sampling:
                return None
            if self._torch.cuda.is_current_stream_capturing():
                return None
            pair = self._free.pop() if self._free else self._make()
            if pair is not None:
                pair[0].record()
            return pair
        except Exception:
            self._cut = True
            self._fault("events")
            return None

    def after(self, mark: object) -> None:
        try:
            mark[1].record()  # type: ignore[index]  # a pair of ours
        except Exception:
            self._cut = True
            self._fault("events")

    def look(self, seconds: float, wait: Callable[[float], object]) -> Looked:
        self._relax()
        self._seen, self._cut, self._turn = [], False, 0
        try:
            self._source.open(self._see, self)
            wait(seconds)
        finally:
            self._source.close(self._see)
        seen, self._seen = self._seen, None
        # So that next time the pairs are spread over the window.
        self._sampling = max(1, self._turn // PAIRS)
        timed = [s for s in seen if s.mark is not None]
        try:
            found = self._read(timed)
        finally:
            self._free += [s.mark for s in timed]  # type: ignore[misc]  # pairs of ours
        if found is None:
            return Looked("cut" if self._cut else "late", launches=len(seen))
        if not found.labels:
            return Looked("idle", launches=len(seen))
        return Looked("ok", self._published.samples(found, self.method), len(seen))

    def cut(self) -> None:
        with self._reading:
            self._cut = True

    def rest(self) -> None:
        self.cut()

    def captured(self, launches: list[tuple[Key, Label]], alive: Callable[[], bool]) -> int:  # noqa: ARG002  # none here
        """What a graph replays cannot be seen by events around launches."""
        return 0

    def _see(self, seen: Seen) -> None:
        kept = self._seen
        if kept is not None and len(kept) < MAX_LAUNCHES:
            kept.append(seen)
        elif seen.mark is not None:  # one that ended after the window, too, gives its pair back
            self._free.append(seen.mark)  # type: ignore[arg-type]  # a pair of ours

    def _make(self) -> Pair | None:
        if self._made >= PAIRS:
            return None
        self._made += 1
        event = self._torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)

    def _read(self, timed: list[Seen]) -> Found | None:
        """The times of all pairs, once the GPU has passed them; None if a capture came, or they took too long."""
        labels: dict[Label, int] = {}
        of, duration = [], []
        deadline = time.monotonic() + READ_SECONDS
        for seen in timed:
            pair: Any = seen.mark
            while True:
                with self._reading:
                    if self._cut:
                        return None
                    if pair[1].query():
                        milliseconds = pair[0].elapsed_time(pair[1])
                        break
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.001)
            x, y, z = seen.target[:3]
            if seen.returned and not seen.trial and x * y * z > 0:
                label = seen.binary.label(seen.key)
                of.append(labels.setdefault(label, len(labels)))
                duration.append(round(milliseconds * 1e6))
        until = np.array(duration, np.int64)
        spans = Spans(np.zeros_like(until), until, np.array(of, np.int64), np.arange(len(labels)), len(labels))
        return Found(list(labels), spans, Attribution([], NOTHING), len(timed), 0, all_in_one(NOTHING, NOTHING), {})

    def _relax(self) -> None:
        if not getattr(self._torch.version, "hip", None):
            try:
                Driver().relax()
            except (OSError, DriverError):
                log.debug("tritonprobe: no driver to relax", exc_info=True)
