"""What windows found, into the ledger. Knows the metric table; knows no CUPTI.

Sums go to every kernel and bucket, histograms only to the pairs with the most GPU time: a histogram is some fifty
series. Foreign kernels are told apart up to a bound, then counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tritonprobe.gpu.analysis import EXTERNAL, Found
from tritonprobe.gpu.spans import tally
from tritonprobe.ledger import schema
from tritonprobe.ledger.store import Exemplar, Ledger, Traced
from tritonprobe.model import OTHER, GpuLaunch, GpuSample
from tritonprobe.seen import Label

TOP = 24
"""Pairs with a histogram at one time."""
MAX_EXTERNAL = 128
"""Names of foreign kernels told apart."""
MAX_PAIRS = 4096
"""Pairs whose GPU time is remembered to find the top."""


class Published:
    """Adds windows to `ledger`, for one process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._time: Counter[Label] = Counter()
        self._names: set[str] = set()
        self._devices: set[int] = set()  # that ran a kernel in any window

    def external(self, name: str) -> str:
        """What a foreign kernel is counted as."""
        if name in self._names:
            return name
        if len(self._names) >= MAX_EXTERNAL:
            return OTHER
        self._names.add(name)
        return name

    def samples(self, found: Found, method: str, traced: Sequence[GpuLaunch] = ()) -> tuple[GpuSample, ...]:
        """Counts a window's records, and says what they were. Exemplars are the latest of the `traced` launches."""
        cells, totals = tally(found.spans, np.asarray(schema.GPU_BOUNDS) * 1e9)
        counted = zip(found.labels, cells.sum(axis=1).tolist(), totals.tolist(), strict=True)
        samples = tuple(GpuSample(*label, method, count, ns) for label, count, ns in counted if count)
        for sample in samples:
            pair = (sample.kernel, sample.bucket)
            self._ledger.merge(schema.KERNEL_BUCKET_SECONDS, (*pair, method), (sample.count, sample.total_ns / 1e9))
            if pair in self._time or len(self._time) < MAX_PAIRS:
                self._time[pair] += sample.total_ns
        top = [pair for pair, _ in self._time.most_common(TOP)]
        row = {label: place for place, label in enumerate(found.labels)}
        latest = {(each.kernel, each.bucket): each for each in sorted(traced, key=lambda each: each.end_ns)}
        for pair in top:
            if pair in row:
                numbers = (*cells[row[pair]].tolist(), int(totals[row[pair]]) / 1e9)
                self._ledger.merge(schema.KERNEL_SECONDS, pair, numbers, _exemplar(latest.get(pair)))
        return samples

    def window(self, found: Found, span_ns: int) -> None:
        """Counts what is true of the window as a whole."""
        ledger = self._ledger
        ledger.add(schema.GPU_LAUNCHES, ("matched",), found.launched.matched)
        for reason, count in found.launched.dropped.items():
            ledger.add(schema.GPU_LAUNCHES, (reason,), count)
        if len(found.queue.since):
            cells, totals = tally(found.queue, np.asarray(schema.QUEUE_BOUNDS) * 1e9)
            ledger.merge(schema.QUEUE_SECONDS, (), (*cells[0].tolist(), int(totals[0]) / 1e9))
        self._devices.update(found.busy_ns)
        for device, busy in found.busy_ns.items():
            ledger.add(schema.GPU_BUSY, (str(device),), min(busy, span_ns) / 1e9)
        self.watched(span_ns)

    def watched(self, span_ns: int) -> None:
        """Counts that windows watched each GPU for so long, whether or not it ran anything meanwhile."""
        for device in self._devices:
            self._ledger.add(schema.GPU_WATCHED, (str(device),), span_ns / 1e9)


def _exemplar(launch: GpuLaunch | None) -> Traced | None:
    if launch is None:
        return None
    ns = launch.end_ns - launch.start_ns
    return Traced(ns / 1e9, launch.unix_ns + ns, Exemplar(*launch.traces[0]))


__all__ = ["EXTERNAL", "Published"]
