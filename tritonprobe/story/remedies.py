"""What would make cold calls stop: the advice for each recorded reason, weighed by the seconds it speaks of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tritonprobe.model import ColdCall
from tritonprobe.shapes.advice import advice_for
from tritonprobe.story.view import Remedy

KEEP_CACHE = "Keep TRITON_CACHE_DIR on a volume that outlives the process: a restart then finds its variants on disk."
KEEP_WINNERS = "Set TRITON_CACHE_AUTOTUNING=1: a restart then finds the winners of autotuning on disk."
_IN_ANY_CASE = frozenset(("process_init", "module_load"))
"""Phases that a process pays with every binary on its disk, too."""
_NS = 1e9


def remedies(calls: Iterable[ColdCall], top: int) -> tuple[Remedy, ...]:
    """The `top` remedies for the cold calls of serving threads, the dearest first."""
    seconds: dict[str, float] = defaultdict(float)
    kernels: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        if call.background:
            continue
        for text in _texts(call):
            kept = sum(ns for phase, ns in call.phases if phase in _IN_ANY_CASE) if text == KEEP_CACHE else 0
            seconds[text] += (call.wall_ns - kept) / _NS
            kernels[text].add(call.kernel)
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Remedy(text, spent, tuple(sorted(kernels[text]))) for text, spent in ranked[:top])


def _texts(call: ColdCall) -> tuple[str, ...]:
    texts = advice_for(call.reasons)
    if call.tier == "compile":
        texts += (KEEP_CACHE,)
    if call.tuning is not None and not call.tuning.from_disk:
        texts += (KEEP_WINNERS,)
    return texts
