"""GPU times on a real GPU: as long as torch.profiler says, plain and replayed, before it, after it, through forks."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

import tritonprobe
from tests.gpu import tiny
from tests.kernels.cases import CORE, Case, Inputs
from tritonprobe import runtime as runtime_module
from tritonprobe.gpu import bench
from tritonprobe.ledger import Sample
from tritonprobe.runtime import Runtime, current
from tritonprobe.settings import Settings

pytestmark = pytest.mark.gpu

matmul_module = importlib.import_module("tritonprobe_kernels.matmul")
ROOT = Path(__file__).parent.parent.parent
SHARE, LEAST_NS = 0.01, 50
"""How far our median may lie from torch.profiler's."""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """Everything is watched, and windows open only when asked for."""
    before = runtime_module.current().adapter
    before.uninstall()
    fresh = Runtime(Settings(gpu_windows="graphs"))
    monkeypatch.setattr(runtime_module, "_current", fresh)
    tritonprobe.instrument()
    times(fresh).budget.period = 1e6
    yield fresh
    tritonprobe.uninstrument()
    assert total(fresh, "errors_total") == 0


def times(runtime: Runtime) -> Any:
    assert runtime.adapter.gpu is not None
    return runtime.adapter.gpu.times


def total(runtime: Runtime, name: str) -> float:
    samples = (s for f in runtime.ledger.collect() if f.metric.name == name for s in f.samples)
    return sum(s.value for s in samples if isinstance(s, Sample))


def seen_while(call: Callable[[], Any], seconds: float = 0.15) -> tuple[tritonprobe.GpuSample, ...]:
    """What one window makes of `call`, again and again, from the second time on."""
    call()
    torch.cuda.synchronize()
    found: list[tuple[tritonprobe.GpuSample, ...]] = []
    thread = threading.Thread(target=lambda: found.append(tritonprobe.gpu_window(seconds)))
    thread.start()
    while thread.is_alive():
        call()
    thread.join()
    torch.cuda.synchronize()
    assert found[0], {
        s.labels: s.value
        for f in current().ledger.collect()
        if f.metric.name == "gpu_windows_total"
        for s in f.samples
        if isinstance(s, Sample)
    }
    return found[0]


def recognised(runtime: Runtime) -> str:
    """What is known of captures and of the graphs in records: why one was not recognised."""
    graphs = times(runtime)._clock._graphs
    captures = [(capture.launches, capture.alive()) for capture in graphs._captures]
    return f"captures: {captures}; graphs: {dict(graphs._graphs)}; given up: {graphs._asked}"


def bumping() -> Callable[[], Any]:
    """A call that launches one small kernel, of the bucket ``n<=512``."""
    x = torch.zeros(1 << 16, device="cuda")
    return lambda: tiny.bump[(3,)](x, 384, BLOCK=128)


@contextmanager
def inside_a_long_window(call: Callable[[], Any]) -> Iterator[None]:
    """A window of seconds is open when the block begins, and is given up for what the block does."""
    seen_while(call)
    thread = threading.Thread(target=lambda: tritonprobe.gpu_window(5))
    thread.start()
    time.sleep(0.2)
    yield
    thread.join(3)
    assert not thread.is_alive()


def durations(call: Callable[[], Any], calls: int = 60) -> dict[str, list[int]]:
    """Our records of so many calls, by function and grid, in nanoseconds; straight from CUPTI."""
    from tritonprobe.gpu.cupti import text_at, the_cupti
    from tritonprobe.gpu.cupti_clock import marker_of
    from tritonprobe.gpu.driver import Driver

    cupti = the_cupti()
    marker_of(cupti, Driver(), 0)
    with cupti.use:
        cupti.attach()
        cupti.flush()
        cupti.discard()
        call()
        torch.cuda.synchronize()
        cupti.enable()
        for _ in range(calls):
            call()
        cupti.disable()
        torch.cuda.synchronize()
        assert cupti.collect(5.0)
        records = cupti.records()
    found = defaultdict(list)
    names = {address: text_at(address) for address in np.unique(records.name).tolist()}
    for name, ns in zip(records.name.tolist(), (records.end - records.start).tolist(), strict=True):
        found[names[name]].append(ns)
    return found


def profiled(call: Callable[[], Any], calls: int = 60) -> dict[str, list[int]]:
    """torch.profiler's kernels, in nanoseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    found = defaultdict(list)
    for event in profiler.profiler.kineto_results.events():
        if str(event.device_type()).endswith("CUDA"):
            found[event.name()].append(event.duration_ns())
    return found


def assert_alike(ours: dict[str, list[int]], theirs: dict[str, list[int]], kernel: str) -> None:
    assert len(ours[kernel]) == len(theirs[kernel]) > 0
    mine, yours = median(ours[kernel]), median(theirs[kernel])
    assert abs(mine - yours) <= max(SHARE * yours, LEAST_NS), f"{kernel}: {mine} ns, torch.profiler {yours} ns"


def alike(call: Callable[[], Any], kernel: str) -> None:
    """In turn and three times at most: a GPU's clock moves by more than a percent now and then."""
    for attempt in range(4):
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        ours, theirs = durations(call), profiled(call)
        try:
            assert_alike(ours, theirs, kernel)
            return
        except AssertionError:
            if attempt == 3:
                raise


def in_graph(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.parametrize("replayed", [False, True], ids=["plain", "graph"])
@pytest.mark.parametrize("n", [1 << 10, 1 << 20, 1 << 26])
def test_adds_take_as_long_as_torch_profiler_says(runtime: Runtime, n: int, replayed: bool) -> None:
    x, y, out = (torch.zeros(n, device="cuda") for _ in range(3))

    def call() -> None:
        tiny.add[(-(-n // 1024),)](x, y, out, n, BLOCK=1024)

    graph = in_graph(call) if replayed else None
    alike(call if graph is None else graph.replay, "add")


@pytest.mark.parametrize("replayed", [False, True], ids=["plain", "graph"])
@pytest.mark.parametrize("case", CORE, ids=str)
def test_each_kernel_takes_as_long_as_torch_profiler_says(
    runtime: Runtime, case: Case, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(torch.float16, "contiguous", "cuda", torch.Generator().manual_seed(0))
    args, kwargs = case.make(inputs)
    monkeypatch.setattr(matmul_module.matmul_kernel, "configs", matmul_module.CONFIGS[1:2])
    call = lambda: case.op(*args, **kwargs)  # noqa: E731
    call()
    ours = {name for name in durations(call, 3) if not name.startswith("_Z")}
    graph = in_graph(call) if replayed else None
    for name in ours:
        alike(call if graph is None else graph.replay, name)


def test_a_window_names_kernel_and_bucket(runtime: Runtime) -> None:
    x = torch.zeros(1 << 16, device="cuda")
    samples = seen_while(lambda: [tiny.bump[(blocks,)](x, blocks * 128, BLOCK=128) for blocks in (3, 100)])
    mine = {s.bucket: s for s in samples if s.kernel == "tests.gpu.tiny.bump"}
    assert set(mine) == {"n<=512", "n<=16384"}
    assert all(s.method == "cupti" and s.count > 10 and 300 < s.total_ns / s.count < 100_000 for s in mine.values())


def test_kernels_of_a_replayed_graph_have_their_buckets(runtime: Runtime) -> None:
    x = torch.zeros(1 << 16, device="cuda")
    graph = in_graph(lambda: [tiny.bump[(blocks,)](x, blocks * 128, BLOCK=128) for blocks in (3, 100, 3)])
    samples = seen_while(graph.replay)
    counts = {s.bucket: s.count for s in samples if s.kernel == "tests.gpu.tiny.bump"}
    assert set(counts) == {"n<=512", "n<=16384"}
    assert counts["n<=512"] == 2 * counts["n<=16384"] > 10


def test_a_graph_older_than_the_probe_is_nobodys(runtime: Runtime) -> None:
    x = torch.zeros(1 << 16, device="cuda")
    tritonprobe.uninstrument()
    old = in_graph(lambda: tiny.bump[(7,)](x, 7 * 128, BLOCK=128))
    tritonprobe.instrument()
    assert [(s.kernel, s.bucket) for s in seen_while(old.replay)] == [("bump", "external")]


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "kept"])
def test_a_graph_captured_again_in_another_bucket(runtime: Runtime, kept: bool) -> None:
    """The same kernel and grid, with fewer elements; the first graph is gone, or is replayed as before."""
    x = torch.zeros(1 << 16, device="cuda")
    graph = in_graph(lambda: tiny.bump[(9,)](x, 9 * 128, BLOCK=128))
    assert [s.bucket for s in seen_while(graph.replay)] == ["n<=2048"], recognised(runtime)
    held = weakref.ref(graph)
    first = graph if kept else None
    del graph
    gc.collect()
    assert (held() is not None) == kept, gc.get_referrers(held())
    again = in_graph(lambda: tiny.bump[(9,)](x, 9 * 128 - 600, BLOCK=128))
    assert [s.bucket for s in seen_while(again.replay)] == ["n<=1024"], recognised(runtime)
    if first is not None:
        assert [s.bucket for s in seen_while(first.replay)] == ["n<=2048"], recognised(runtime)


def test_torch_profiler_in_the_middle_sees_all_and_so_do_we_before_and_after(runtime: Runtime) -> None:
    from torch.profiler import ProfilerActivity, profile

    call = bumping()
    assert seen_while(call)
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            assert tritonprobe.gpu_window(0.01) == ()
        assert [e.count for e in profiler.key_averages() if e.key == "bump"] == [20]
        assert seen_while(call)


def test_torch_profiler_that_begins_inside_a_window_sees_all(runtime: Runtime) -> None:
    from torch.profiler import ProfilerActivity, profile

    call = bumping()
    with inside_a_long_window(call), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            call()
        torch.cuda.synchronize()
    assert [e.count for e in profiler.key_averages() if e.key == "bump"] == [20]
    assert seen_while(call)


def test_a_capture_inside_a_window_is_left_in_peace(runtime: Runtime) -> None:
    call = bumping()
    with inside_a_long_window(call):
        graph = in_graph(call)
    graph.replay()
    torch.cuda.synchronize()
    assert seen_while(graph.replay)[0].bucket == "n<=512"


def test_the_self_test_passes_beside_threads_that_launch(runtime: Runtime) -> None:
    """Their records come in buffers of their own, also before ours and one by one."""
    from tritonprobe.gpu.cupti import the_cupti
    from tritonprobe.gpu.cupti_clock import marker_of
    from tritonprobe.gpu.driver import Driver

    cupti, driver, over = the_cupti(), Driver(), threading.Event()
    marker_of(cupti, driver, 0)
    stride = cupti.stride

    def launch(pause: float) -> None:
        call = bumping()
        while not over.wait(pause):
            call()

    threads = [threading.Thread(target=launch, args=(pause,)) for pause in (0.0, 0.0005, 0.002)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with cupti.use:
                cupti.test(driver, 0).close()
            assert cupti.stride == stride
    finally:
        over.set()
        for thread in threads:
            thread.join()
    torch.cuda.synchronize()


def test_bench_is_the_records_time(runtime: Runtime) -> None:
    x, y, out = (torch.zeros(1 << 20, device="cuda") for _ in range(3))
    call = lambda: tiny.add[(1024,)](x, y, out, 1 << 20, BLOCK=1024)  # noqa: E731
    call()
    middle = bench(call, quantiles=(0.5,))
    both = bench(call, quantiles=(0.2, 0.8))
    assert isinstance(middle, float)
    assert isinstance(both, list)
    low, high = both
    assert 0.5 * low <= middle <= 2 * high
    assert 0.001 < middle < 0.02  # milliseconds: 12 MB at some terabytes a second, from a cold cache


def test_two_benchmarks_of_a_short_kernel_agree(runtime: Runtime) -> None:
    x, y, out = (torch.zeros(1024, device="cuda") for _ in range(3))
    called = 0

    def call() -> None:
        nonlocal called
        called += 1
        tiny.add[(1,)](x, y, out, 1024, BLOCK=1024)

    every = bench(call, return_mode="all")
    assert isinstance(every, list)
    assert 500 < len(every) < called  # calls in a row, between two series, are in no time
    first, second = (bench(call, return_mode="median") for _ in range(2))
    assert isinstance(first, float)
    assert isinstance(second, float)
    assert abs(first - second) * 1e6 < LEAST_NS


def test_after_uninstrument_nothing_is_outstanding(runtime: Runtime) -> None:
    from tritonprobe.gpu.cupti import the_cupti

    seen_while(bumping())
    tritonprobe.uninstrument()
    assert the_cupti().outstanding == 0
    assert torch.cuda.CUDAGraph.capture_begin.__module__ == "torch.cuda.graphs"
    assert not hasattr(torch.cuda.CUDAGraph.capture_begin, "__wrapped__")


@pytest.mark.parametrize("part", ["deadlock", "leaving"])
def test_no_crash_and_no_deadlock(part: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "tests.gpu.gpu_programs", part]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n"), done.stdout
