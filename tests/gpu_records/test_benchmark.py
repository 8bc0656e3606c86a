"""`gpu.bench` on a GPU that never was: what it says, and that nothing of it is left behind, whatever a call does."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.adapter.conftest import fresh
from tests.gpu_records.fake_gpu import FakeCupti
from tritonprobe.gpu import bench, benchmark, torch_graphs
from tritonprobe.gpu.benchmark import GpuTimingError
from tritonprobe.gpu.cupti import CuptiError
from tritonprobe.gpu.driver import MARK, DriverError
from tritonprobe.gpu.records import RecordError
from tritonprobe.gpu.times import GpuTimes, Program
from tritonprobe.runtime import Runtime

NS = 1600
EVENT_MS = 0.25


class Cupti(FakeCupti):
    """Holds a buffer from a first record until it is asked for all of them, and leaves only without."""

    def launched(self, name: str, grid: tuple[int, int, int], what: object = None, **more: int) -> None:
        super().launched(name, grid, what, **more)
        self.outstanding |= self.on

    def collect(self, seconds: float, enough: Any = None) -> bool:
        self.outstanding = 0
        return True

    def leave(self, driver: object) -> None:
        if not self.outstanding:
            super().leave(driver)


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, enable_timing: bool) -> None:
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded
        assert end.recorded
        return EVENT_MS


class Gpu:
    """One kernel that takes `NS`, and what `bench` needs of torch, the driver and CUPTI."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cupti = Cupti()
        self.calls = 0
        self.graphs = False
        self.capturing = False
        self.available = True
        cache = torch.zeros(4)
        for name, fake in {
            "is_available": lambda: self.available,
            "is_current_stream_capturing": lambda: self.capturing,
            "current_device": lambda: 0,
            "current_stream": lambda: SimpleNamespace(cuda_stream=0),
            "synchronize": lambda: None,
            "Event": Event,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: cache)
        monkeypatch.setattr("tritonprobe.gpu.benchmark._said", [])
        monkeypatch.setattr("tritonprobe.gpu.cupti.the_cupti", lambda: self.cupti)
        monkeypatch.setattr("tritonprobe.gpu.driver.Driver", lambda: None)
        monkeypatch.setattr("tritonprobe.gpu.cupti_clock.marker_of", lambda *_: self.self_test())
        monkeypatch.setattr(torch_graphs, "are_there_any", lambda: self.graphs)

    def self_test(self) -> Any:
        if not self.cupti.left:
            self.cupti.attach()  # with the first one
        return SimpleNamespace(launch=lambda blocks, stream: self.cupti.launched(MARK, (blocks, 1, 1)))

    def call(self) -> None:
        self.calls += 1
        now = time.perf_counter_ns()
        self.cupti.launched("add", (4, 1, 1), start=now, end=now + NS)

    def raising_at(self, number: int, error: BaseException) -> Callable[[], None]:
        def call() -> None:
            self.call()
            if self.calls == number:
                raise error

        return call

    @property
    def is_clean(self) -> bool:
        return not (self.cupti.on or self.cupti.outstanding or self.cupti.attached or self.cupti.rows)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu(monkeypatch)
    yield gpu
    assert not gpu.cupti.on
    assert gpu.cupti.use.acquire(blocking=False)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    start = "tritonprobe: gpu.bench times by events, which see the host, too: "
    return [record.message.removeprefix(start) for record in caplog.records if record.message.startswith(start)]


def test_a_call_takes_what_its_kernels_take(gpu: Gpu) -> None:
    def twice() -> None:
        gpu.call()
        gpu.call()

    assert bench(twice, warmup=1, rep=2) == pytest.approx(2 * NS / 1e6)
    assert gpu.is_clean
    assert gpu.cupti.switches == ["attach", "attach", "on", "off", "leave"]


@pytest.mark.parametrize("mode", ["mean", "median", "min", "max", "all"])
@pytest.mark.parametrize("quantiles", [None, (), (0.5,), [0.2, 0.8], (0.5, 0.2, 0.8)])
def test_what_it_returns_has_the_form_of_do_benchs(gpu: Gpu, mode: Any, quantiles: Any) -> None:
    ours = bench(gpu.call, warmup=0, rep=0.5, quantiles=quantiles, return_mode=mode)
    count = len(ours) if isinstance(ours, list) else 3
    theirs = triton.testing._summarize_statistics([NS / 1e6] * count, quantiles, mode)
    assert ours == pytest.approx(theirs)
    assert type(ours) is type(theirs)


@pytest.mark.parametrize("rep", [0, 1e-9])
def test_it_calls_at_least_once(gpu: Gpu, rep: float) -> None:
    assert bench(gpu.call, warmup=rep, rep=rep, return_mode="all") == pytest.approx([NS / 1e6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rep": math.nan}, "rep=nan: expected milliseconds, 0 or more"),
        ({"rep": math.inf}, "rep=inf: expected milliseconds, 0 or more"),
        ({"warmup": -1}, "warmup=-1: expected milliseconds, 0 or more"),
        ({"quantiles": (0.5, 1.5)}, r"quantile 1\.5: expected 0 to 1"),
        ({"return_mode": "best"}, "return_mode='best': expected mean, median, min, max or all"),
    ],
)
def test_an_argument_that_says_nothing_is_refused_before_anything_runs(
    gpu: Gpu, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bench(gpu.call, **arguments)
    assert gpu.calls == 0


def test_gradients_are_taken_away_before_each_timed_call_whatever_holds_the_tensors(gpu: Gpu) -> None:
    weight = SimpleNamespace(grad=None)
    kept: list[bool] = []

    def call() -> None:
        gpu.call()
        kept.append(weight.grad is not None)
        weight.grad = 1

    timed = bench(call, warmup=0, rep=1, grad_to_none=(w for w in [weight]), return_mode="all")  # type: ignore[arg-type]
    assert isinstance(timed, list)
    assert kept.count(False) == len(timed) + 1  # and the very first call


@pytest.mark.parametrize("number", [1, 3, 8, 40])
@pytest.mark.parametrize("error", [RuntimeError("out of resources"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_call_that_raises_leaves_nothing_behind(gpu: Gpu, number: int, error: BaseException) -> None:
    """At first, as its length is estimated, warming up, and between two marks."""
    with pytest.raises(type(error)) as raised:
        bench(gpu.raising_at(number, error), warmup=0.1, rep=10_000)
    assert raised.value is error
    assert gpu.calls == number
    assert gpu.is_clean
    assert bench(gpu.call, warmup=0.1, rep=1) == pytest.approx(NS / 1e6)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("records", RecordError("a record of kind 4 among the kernels (kind 10): another profiler asked for it")),
        ("enable", CuptiError("cuptiActivityEnable: CUPTI_ERROR_NOT_INITIALIZED (15)")),
        ("launched", DriverError("cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE (400)")),
    ],
)
def test_what_is_wrong_with_records_leads_to_events_with_one_line(
    gpu: Gpu, broken: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **more: Any) -> Any:
        if broken != "launched" or not more:  # of launches only the marker's
            raise error

    monkeypatch.setattr(gpu.cupti, broken, fails)
    assert bench(gpu.call, warmup=0, rep=0.5) == pytest.approx(EVENT_MS)
    assert bench(gpu.call, warmup=0, rep=0.5) == pytest.approx(EVENT_MS)
    assert said(caplog) == [str(error)]
    assert gpu.is_clean


@pytest.mark.parametrize("lost", [slice(-2, -1), slice(-5, -2)], ids=["a mark", "a call"])
def test_records_that_are_missing_are_told_of_once(gpu: Gpu, lost: slice, caplog: pytest.LogCaptureFixture) -> None:
    """However many they are: a tuner asks for each of its configurations."""

    def losing() -> None:
        gpu.call()
        if len(gpu.cupti.rows) > 4:
            del gpu.cupti.rows[lost]

    for rep in (5, 6, 7):
        assert bench(losing, warmup=0, rep=rep) == pytest.approx(EVENT_MS)
    assert said(caplog) == ["not every call left its records"]


def test_a_kernel_that_never_ended_is_in_no_time(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    def call() -> None:
        gpu.call()
        gpu.cupti.launched("spin", (1, 1, 1), start=time.perf_counter_ns(), end=0)

    assert bench(call, warmup=0, rep=0.5) == pytest.approx(EVENT_MS)
    assert said(caplog) == ["a kernel that other threads launched did not end"]


def test_a_call_without_a_kernel_did_not_take_no_time(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    assert bench(lambda: None, warmup=0, rep=0.01) == pytest.approx(EVENT_MS)
    assert said(caplog) == ["the calls launched no kernel; copies and fills by the driver leave no record of one"]
    assert gpu.is_clean


def test_times_stand_though_cupti_would_not_leave(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(driver: object) -> None:
        raise CuptiError("cuptiFinalize: never called")

    monkeypatch.setattr(gpu.cupti, "leave", fails)
    assert bench(gpu.call, warmup=0, rep=0.5) == pytest.approx(NS / 1e6)
    assert said(caplog) == []


def test_cupti_is_taken_out_after_a_self_test_that_failed(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        gpu.cupti.attach()
        raise CuptiError("self-test: correlation ids do not rise in launch order")

    monkeypatch.setattr("tritonprobe.gpu.cupti_clock.marker_of", fails)
    assert bench(gpu.call, warmup=0, rep=0.5) == pytest.approx(EVENT_MS)
    assert said(caplog) == ["self-test: correlation ids do not rise in launch order"]
    assert gpu.is_clean


def test_beside_a_graph_that_a_call_captured_cupti_stays(gpu: Gpu) -> None:
    def call() -> None:
        gpu.call()
        gpu.graphs = gpu.cupti.on

    bench(call, warmup=0, rep=0.5)
    assert gpu.cupti.attached
    assert not gpu.cupti.outstanding


@pytest.mark.parametrize("graphs_too", [True, False])
def test_where_windows_measure_graphs_cupti_stays(gpu: Gpu, graphs_too: bool) -> None:
    """Also before the first one is captured: where CUPTI has left it cannot come back to graphs."""
    nothing: Any = None
    program = Program(lambda: None, str, lambda: True, lambda: False, graphs_too)
    times = GpuTimes(nothing, nothing, nothing, program)
    times.start()
    bench(gpu.call, warmup=0, rep=0.5)
    assert gpu.cupti.attached == graphs_too
    times.stop()
    bench(gpu.call, warmup=0, rep=0.5)
    assert not gpu.cupti.attached


def test_a_capture_of_another_thread_is_left_in_peace(gpu: Gpu) -> None:
    nothing: Any = None
    times = GpuTimes(nothing, nothing, nothing, nothing)
    times.begins("capture")
    with pytest.raises(GpuTimingError, match="a capture of a graph or another profiler is under way"):
        benchmark.gpu_times(gpu.call, 0, 0.5, ())
    times.ends("capture")
    assert benchmark.gpu_times(gpu.call, 0, 0.5, ())


def test_a_profiler_that_another_thread_started_keeps_cupti(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(bench(gpu.call, warmup=0, rep=0.5)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        thread.start()
        thread.join()
    assert found == [pytest.approx(EVENT_MS)]
    assert said(caplog) == ["torch.profiler is at work"]
    assert gpu.cupti.switches == []


def test_another_benchmark_waits_with_its_warm_up(gpu: Gpu) -> None:
    other = threading.Thread(target=lambda: bench(others, warmup=1, rep=0.5))
    called = meanwhile = 0

    def others() -> None:
        nonlocal called
        called += 1
        gpu.call()

    def call() -> None:
        nonlocal meanwhile
        gpu.call()
        if gpu.cupti.on:
            if not called:
                other.start()
                while not called:
                    time.sleep(0.001)
                time.sleep(0.05)
            meanwhile = called

    bench(call, warmup=0, rep=0.5)
    other.join()
    assert meanwhile == 1 < called


def test_of_a_graphs_first_replay_no_record_counts(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no time for calls between the series."""
    launched: list[str] = []
    real = gpu.cupti.launched

    def listening(name: str, *rest: Any, **more: Any) -> None:
        if gpu.cupti.on:
            launched.append(name)
        real(name, *rest, **more)

    monkeypatch.setattr(gpu.cupti, "launched", listening)
    bench(gpu.call, warmup=0, rep=0)
    assert launched == ["add", MARK, "add", MARK]


@triton.jit
def filled(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


def test_a_tuner_with_this_clock_compiles_on_the_compile_only_device(runtime: Runtime) -> None:
    """As with Triton's own there: nothing runs, and the first that compiles wins."""
    configs = [triton.Config({"BLOCK": block}) for block in (32, 64)]
    tuned = triton.autotune(configs, key=["n"], do_bench=bench)(fresh(filled))
    tuned[(1,)](torch.zeros(64), 3)
    assert tuned.best_config is configs[0]
    assert tuned.configs_timings == {config: [0.0, 0.0, 0.0] for config in configs}


@pytest.mark.parametrize("why", ["device", "capture"])
def test_where_events_tell_no_time_either_nothing_is_called(gpu: Gpu, why: str) -> None:
    gpu.available, gpu.capturing = why != "device", why == "capture"
    message = "torch sees no CUDA device" if why == "device" else "the current stream is capturing a graph"
    with pytest.raises(GpuTimingError, match=message):
        bench(gpu.call)
    assert gpu.calls == 0


def test_without_numpy_there_are_events(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tritonprobe.gpu.cupti", None)
    with caplog.at_level(logging.WARNING):
        assert bench(gpu.call, warmup=0, rep=0.5) == pytest.approx(EVENT_MS)
    assert said(caplog) == ["tritonprobe.gpu.cupti is not installed"]
