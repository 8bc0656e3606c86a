"""What a start has cost in cold calls, in one sentence. Knows the ledger's families and nothing else."""

from __future__ import annotations

from tritonprobe.ledger.schema import COLD_CALL_SECONDS, PREWARMS, STARTUP_COLD
from tritonprobe.ledger.store import HistogramSample, Readable, Sample
from tritonprobe.model import STAGES
from tritonprobe.wording import counted

SPARED = frozenset(("frontend", *STAGES, "cache_write", "launcher_build", "autotune", "inductor_workers"))
"""Phases that a call has only if it compiles or tunes: what is in the caches already spares all of them."""
REPLAYED = frozenset(("done", "stopped"))


def cost(ledger: Readable) -> str:
    """As in ``41 compiles 38.2 s, 12 disk hits 0.4 s; prewarm would have saved ~36 s``.

    The last figure is what those calls spent in the phases that a disk hit does not have; it is left out if it is none.
    Where a census was replayed it compiled some of that itself, and a cache that is kept is what would have saved it.
    """
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    saved, what = 0.0, "prewarm"
    for family in ledger.collect():
        for sample in family.samples:
            if family.metric is COLD_CALL_SECONDS and isinstance(sample, HistogramSample):
                calls[sample.labels[0]] = int(sum(sample.counts))
                seconds[sample.labels[0]] = sample.sum
            elif family.metric is STARTUP_COLD and isinstance(sample, Sample) and sample.labels[0] in SPARED:
                saved += sample.value
            elif family.metric is PREWARMS and isinstance(sample, Sample) and sample.labels[0] in REPLAYED:
                what = "a kept cache" if sample.value else what
    compiles, hits = calls.get("compile", 0), calls.get("disk", 0) + calls.get("remote", 0)
    found = seconds.get("disk", 0.0) + seconds.get("remote", 0.0)
    compiled = seconds.get("compile", 0.0)
    sentence = f"{counted(compiles, 'compile')} {compiled:.1f} s, {counted(hits, 'disk hit')} {found:.1f} s"
    return sentence if saved < 0.05 else f"{sentence}; {what} would have saved ~{saved:.{0 if saved >= 10 else 1}f} s"
