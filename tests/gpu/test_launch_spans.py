"""Launches of traced requests on a real GPU: in their steps, as long as the window's own sums, and in the exemplar."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

import tritonprobe
from tests.gpu.test_gpu_times import bumping, runtime
from tritonprobe.ledger import HistogramSample
from tritonprobe.model import Event, GpuLaunches
from tritonprobe.runtime import Runtime

pytestmark = pytest.mark.gpu

__all__ = ["runtime"]

TRACE, SPAN = "a" * 32, "b" * 16


def test_a_sample_of_the_launches_in_a_traced_requests_steps(runtime: Runtime) -> None:
    told: list[GpuLaunches] = []

    def take(event: Event) -> None:
        if isinstance(event, GpuLaunches):
            told.append(event)

    runtime.bus.subscribe(take)
    call = bumping()
    call()
    torch.cuda.synchronize()
    samples: list[Any] = []
    steps: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: samples.extend(tritonprobe.gpu_window(0.15)))
    with tritonprobe.request("r", traceparent=f"00-{TRACE}-{SPAN}-01") as request:
        thread.start()
        while thread.is_alive():
            began = time.monotonic_ns()
            with tritonprobe.step([request]):
                call()
                call()
                torch.cuda.synchronize()
            steps.append((began, time.monotonic_ns()))
        thread.join()
    (event,) = told
    (sample,) = [each for each in samples if each.kernel.endswith("bump")]
    assert 0 < len(event.launches) <= 64
    assert len(event.launches) + event.left_out >= sample.count - 4  # those at the window's edges may not be known
    for launch in event.launches:
        # Synchronised inside its step, so the GPU's own times lie in it, too, by another clock.
        (began, ended), *more = [each for each in steps if each[0] <= launch.launched_ns <= each[1]]
        assert not more
        assert began <= launch.start_ns < launch.end_ns <= ended + 20_000  # the clocks are matched to microseconds
        assert launch.traces == ((TRACE, SPAN),)
    mean = sum(launch.end_ns - launch.start_ns for launch in event.launches) / len(event.launches)
    assert mean == pytest.approx(sample.total_ns / sample.count, rel=0.5)
    histograms = [s for f in runtime.ledger.collect() if f.metric.name == "kernel_seconds" for s in f.samples]
    traces = [s.traced.exemplar.trace_id for s in histograms if isinstance(s, HistogramSample) and s.traced is not None]
    assert TRACE in traces
