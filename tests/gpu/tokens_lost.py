"""What being watched costs in tokens a second, from rounds that took turns: what `server_cost` and `vllm_cost` say."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from tritonprobe.proving.document import described, document
from tritonprobe.proving.intervals import interval, ratios

LIMIT = 0.01
LOOPS, LOOP_LENGTH = 100, 50_000


def stay_on_one_core(thread: int, cores: Collection[int]) -> int:
    """Keeps a thread, by its native id, on one of the cores: on another its pace may be another by a half, for a round.

    It is the core on which the slowest tenth of short loops is fastest, for others may be shared. Returns it.
    """
    before = os.sched_getaffinity(0)
    try:
        core = min(sorted(cores), key=_slowest_tenth)
    finally:
        os.sched_setaffinity(0, before)
    os.sched_setaffinity(thread, {core})
    return core


def _slowest_tenth(core: int) -> int:
    os.sched_setaffinity(0, {core})
    took = []
    for _ in range(LOOPS):
        begin = time.perf_counter_ns()
        sum(range(LOOP_LENGTH))
        took.append(time.perf_counter_ns() - begin)
    return sorted(took)[-LOOPS // 10]


def leave(
    bench: str,
    command: str,
    rounds: Mapping[str, Sequence[float]],
    windows_share: float,
    more: Mapping[str, Any],
    output: Path | None,
) -> int:
    """Writes the document and says its figures. The exit code.

    `rounds` has those without tritonprobe first, and those with everything, which are judged, last.
    """
    base, *others = rounds
    kept = {name: interval(ratios(rounds[base], rounds[name]), 0) for name in others}
    loss = 1 - kept[others[-1]].low + windows_share
    body = {
        "rounds_of_each": len(rounds[base]),
        "tokens_per_second": {name: median(each) for name, each in rounds.items()},
        "kept_ratio": {name: asdict(ratio) for name, ratio in kept.items()},
        "windows_share_by_their_own_account": windows_share,
        "loss_at_most": loss,
        "limit": LIMIT,
        "good": loss <= LIMIT,
        **more,
        "rounds": rounds,
    }
    if output is not None:
        output.write_text(json.dumps(document(bench, command, described(), body), indent=1) + "\n")
    ratio = ", ".join(f"{name} {each.median:.4f} [{each.low:.4f}, {each.high:.4f}]" for name, each in kept.items())
    sys.stdout.write(
        f"{body['tokens_per_second']} tokens a second; kept {ratio}, windows {windows_share:.2%}: "
        f"lost at most {loss:.2%}\n"
    )
    return 0 if loss <= LIMIT else 1
