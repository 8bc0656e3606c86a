"""Which launches of a window were made for traced requests, and a sample of them. Pure; knows no tracer.

A launch is a step's if that step's thread launched it between the step's beginning and its end; where steps overlap,
that of the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tritonprobe.gpu.analysis import Found
from tritonprobe.model import GpuLaunch, GpuLaunches
from tritonprobe.seen import TracedStep

A_STEP, A_WINDOW = 16, 64
"""Launches of one step, and of one window, that are told of: spread evenly over the step."""


def choose(found: Found, steps: Sequence[TracedStep], wall_ns: int) -> GpuLaunches:
    """A sample of the launches in `steps`. `wall_ns` is what the wall clock is ahead of the monotonic one.

    The monotonic clock is that of `time.perf_counter_ns`, too, on every system that has CUPTI.
    """
    known = found.known
    if known is None or not steps:
        return GpuLaunches((), 0)
    free = known.of >= 0  # else an autotune trial
    chosen: list[GpuLaunch] = []
    left_out = 0
    for start, end, thread, traces in sorted(steps, reverse=True):
        its = (known.launched_ns >= start) & (known.launched_ns < end) & (known.thread == thread)
        mine = np.flatnonzero(free & its).tolist()
        free[mine] = False
        take = min(A_STEP, A_WINDOW - len(chosen), len(mine))
        left_out += len(mine) - take
        chosen += [_launch(found, mine[n * len(mine) // take], traces, wall_ns) for n in range(take)]
    return GpuLaunches(tuple(chosen), left_out)


def _launch(found: Found, at: int, traces: tuple[tuple[str, str], ...], wall_ns: int) -> GpuLaunch:
    known = found.known
    assert known is not None
    kernel, bucket = found.labels[int(known.of[at])]
    start = int(known.start_ns[at])
    launched, end = int(known.launched_ns[at]), int(known.end_ns[at])
    return GpuLaunch(kernel, bucket, launched, start, end, start + wall_ns, traces)
