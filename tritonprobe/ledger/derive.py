"""The `memory` tier of `cache_lookups_total`, derived when a ledger is read: a hot launch counts in one cell only.

Every launch, trial and warm-up looks in memory first, and each miss there is one lookup in a further tier or fails. So,
for each kernel and bucket, ``memory = launches + trials + warm-ups - lookups in further tiers - failed lookups``:

- It needs evidence that Triton's in-memory cache is asked at all: a lookup in a further tier, or a known variant
  (`variants`). The interpreter has neither, so its kernels have no tiers. A kernel compiled before the probe came has
  none until a variant of it is known; from then on its earlier launches count, as they were hits.
- Lookups recorded under another bucket than their launch leave the launch's bucket too high. Nothing goes below zero.
- Once `series_dropped_total` counts lookups, some of a pair's stand under `other`: its hits are an upper bound.
- A cold call in progress has counted its launch and trials, but not yet where it found them. Until it ends, each pair
  holds back one call for each process that has one, and the trials made since: hits come late rather than be taken
  back, for a counter never falls. One that dies with its process is taken for a hit.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tritonprobe.forks import tell_in_child
from tritonprobe.ledger.schema import LAUNCHES, LOOKUPS, LOOKUPS_FAILED, TRIALS, VARIANTS, WARMUPS
from tritonprobe.ledger.store import Sample

MEMORY = "memory"

Pair = tuple[str, str]
Readings = Mapping[str, Sequence[Sample]]
"""The samples of each metric, read in the schema's order."""


def hits(calls: float, trials: float, further: float) -> float:
    """In-memory hits of one kernel and bucket."""
    return max(calls + trials - further, 0.0)


class MemoryTier:
    """Remembers what it said, so that no series falls between two readings. Safe from any thread."""

    def __init__(self) -> None:
        self._said: dict[Pair, float] = {}
        self._settled: dict[Pair, float] = {}  # trials counted when no cold call was in progress
        self._lock = threading.RLock()
        tell_in_child(self)

    def samples(self, readings: Readings, in_progress: int) -> list[Sample]:
        """The `memory` samples that belong to `readings`; that many processes have a cold call in progress."""
        calls = _by_pair(readings, LAUNCHES.name, WARMUPS.name)
        trials = _by_pair(readings, TRIALS.name)
        further: dict[Pair, float] = defaultdict(float)
        compiled = {sample.labels[0] for sample in readings.get(VARIANTS.name, ())}
        for sample in readings.get(LOOKUPS.name, ()):
            kernel, bucket, tier = sample.labels
            if tier != MEMORY:
                further[kernel, bucket] += sample.value
                compiled.add(kernel)
        for sample in readings.get(LOOKUPS_FAILED.name, ()):
            kernel, bucket = sample.labels
            further[kernel, bucket] += sample.value
        with self._lock:
            return [
                Sample((*pair, MEMORY), self._say(pair, calls[pair], trials[pair], further[pair], in_progress))
                for pair in {**calls, **trials}
                if pair[0] in compiled or pair in self._said  # who knew of a variant may have ended
            ]

    def after_fork(self) -> None:
        """For a forked child, whose copy of the lock may be held by a thread that it does not have."""
        self._lock = threading.RLock()

    def _say(self, pair: Pair, calls: float, trials: float, further: float, in_progress: int) -> float:
        if in_progress:
            calls, trials = calls - in_progress, self._settled.get(pair, 0.0)
        else:
            self._settled[pair] = trials
        said = self._said[pair] = max(self._said.get(pair, 0.0), hits(calls, trials, further))
        return said


def _by_pair(readings: Readings, *metrics: str) -> dict[Pair, float]:
    found: dict[Pair, float] = defaultdict(float)
    for metric in metrics:
        for sample in readings.get(metric, ()):
            kernel, bucket = sample.labels
            found[kernel, bucket] += sample.value
    return found
