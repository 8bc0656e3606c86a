"""What would make cold calls stop: the advice for each recorded reason, weighed by the seconds it speaks of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tritonprobe.model import ColdCall
from tritonprobe.shapes.advice import advice_for
from tritonprobe.story.view import Remedy

KEEP_CACHE = "Keep TRITON_CACHE_DIR on a volume that outlives the process: a restart then finds its variants on disk."
KEEP_WINNERS = "Set TRITON_CACHE_AUTOTUNING=1: a restart then finds the winners of autotuning on disk."
_OF_THE_PROCESS = frozenset(("process_init",))
"""What a process pays once, at its first call, whichever that is and whoever makes it."""
_IN_ANY_CASE = _OF_THE_PROCESS | {"module_load"}
"""Phases that a process pays with every binary, and every winner, on its disk, too."""
_NS = 1e9


def mend(error: str) -> str:
    """The remedy for calls that raised `error`."""
    return (
        f"Mend what raised {error}, or keep such calls from the kernel: no cache and no prewarming helps a call that "
        "raises (docs/runbooks/launch-errors.md)."
    )


def remedies(calls: Iterable[ColdCall], top: int, ready: bool) -> tuple[Remedy, ...]:
    """The `top` remedies for the cold calls of serving threads, the dearest first, each with what it may save.

    `ready`: the process said that it is. What came before that is what a warm start is for: no advice to prewarm.
    """
    seconds: dict[str, float] = defaultdict(float)
    kernels: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        if call.background:
            continue
        for text, saved_ns in _remedies(call, call.after_ready or not ready):
            seconds[text] += saved_ns / _NS
            kernels[text].add(call.kernel)
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Remedy(text, spent, tuple(sorted(kernels[text]))) for text, spent in ranked[:top])


def _remedies(call: ColdCall, may_prewarm: bool) -> Iterator[tuple[str, int]]:
    """Each with the nanoseconds of `call` that it may save."""
    if call.error is not None:
        yield mend(call.error), _without(call, _OF_THE_PROCESS)
        return
    if may_prewarm:
        saved = _without(call, _OF_THE_PROCESS)
        yield from ((text, saved) for text in advice_for(call.reasons))
    on_disk = _without(call, _IN_ANY_CASE)
    if call.tier == "compile":
        yield KEEP_CACHE, on_disk
    if call.tuning is not None and not call.tuning.from_disk:
        yield KEEP_WINNERS, min(call.tuning.wall_ns, on_disk)


def _without(call: ColdCall, unsaved: frozenset[str]) -> int:
    return call.wall_ns - sum(ns for phase, ns in call.phases if phase in unsaved)
