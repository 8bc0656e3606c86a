"""How ops went, read from the ledger of the process."""

from __future__ import annotations

from collections import Counter

from tritonprobe.ledger.schema import FALLBACKS, OP_CALLS, Metric
from tritonprobe.ledger.store import Sample
from tritonprobe.runtime import current


def paths(op: str) -> Counter[str]:
    """Calls of the op of this name by path, ``triton`` or ``fallback``."""
    return _count(OP_CALLS, op)


def fallbacks(op: str) -> Counter[str]:
    """Calls of the op of this name that fell back, by reason."""
    return _count(FALLBACKS, op)


def _count(metric: Metric, op: str) -> Counter[str]:
    """Series have the labels op, bucket and then what is asked for."""
    counts: Counter[str] = Counter()
    for family in current().ledger.collect():
        if family.metric is metric:
            for sample in family.samples:
                assert isinstance(sample, Sample)
                name, _, key = sample.labels
                if name == f"tritonprobe_kernels.{op}.{op}":
                    counts[key] += int(sample.value)
    return +counts
