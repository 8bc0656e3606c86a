"""When windows open and what stops them, on real Triton launches and a CUPTI that never was."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tritonprobe
from tests.adapter.conftest import fresh, samples_of, total_of
from tests.gpu_records.fake_gpu import FakeCupti, FakeLauncher
from tests.gpu_records.test_window import left_kernel
from tritonprobe import runtime as runtime_module
from tritonprobe.adapter import captures as captures_module
from tritonprobe.adapter.captures import Captures
from tritonprobe.adapter.profilers import Profilers
from tritonprobe.gpu import cupti_clock as clock_module
from tritonprobe.gpu import times as times_module
from tritonprobe.gpu.clock import NotYet
from tritonprobe.gpu.cupti import CuptiError
from tritonprobe.gpu.cupti_clock import CuptiClock, make_clock
from tritonprobe.gpu.names import readable
from tritonprobe.gpu.publish import Published
from tritonprobe.gpu.records import RecordError
from tritonprobe.gpu.times import GpuTimes
from tritonprobe.gpu.times import Program as AboutProgram
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings

X = torch.empty(64)


class Program:
    """A program with one kernel, whose GPU times are measured by a fake CUPTI."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runtime = runtime
        self.cupti = FakeCupti()
        tritonprobe.instrument()
        self.kernel = fresh(left_kernel)
        for n in (16, 3):
            compiled = self.kernel[(1,)](X, n, 16, BLOCK=64)
            compiled._run = FakeLauncher(self.cupti, compiled.name)
        monkeypatch.setattr(clock_module, "make_clock", self.make_clock)
        self.ready = True
        self.graphs = False
        about = AboutProgram(lambda: None, str, lambda: self.ready, lambda: self.graphs, graphs_too=False)
        self.times = GpuTimes(runtime.ledger, runtime.fault, runtime.adapter.windows, about)
        self.made = 0

    def make_clock(self, source: Any, ledger: Any, program: Any, fault: Any, settled: Any) -> CuptiClock:
        if not settled():
            raise NotYet("still starting")
        self.made += 1
        driver: Any = SimpleNamespace(relax=lambda: None)
        cupti: Any = self.cupti
        return CuptiClock(cupti, driver, source, Published(ledger), program)

    def launch(self) -> None:
        self.kernel[(5,)](X, 16, 16, BLOCK=64)

    def window(self, seconds: float = 0.03) -> tuple[tritonprobe.GpuSample, ...]:
        found: list[tuple[tritonprobe.GpuSample, ...]] = []
        thread = threading.Thread(target=lambda: found.append(self.times.window(seconds)))
        thread.start()
        while thread.is_alive():
            self.launch()
        thread.join()
        return found[0]

    def outcomes(self) -> dict[str, float]:
        return {labels[0]: count for labels, count in samples_of(self.runtime, "gpu_windows_total").items()}


@pytest.fixture
def program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Any:
    program = Program(runtime, monkeypatch)
    yield program
    program.times.stop()


def test_a_window_is_counted_by_kernel_and_bucket(program: Program) -> None:
    (sample,) = program.window()
    assert (sample.kernel.rpartition(".")[2], sample.bucket, sample.method) == ("left_kernel", "n<=16,m<=16", "cupti")
    assert sample.total_ns == 1000 * sample.count > 0
    families = {f.metric.name: list(f.samples) for f in program.runtime.ledger.collect()}
    (summary,) = families["kernel_bucket_seconds"]
    assert (summary.counts, summary.sum) == ((sample.count,), pytest.approx(sample.total_ns / 1e9))  # type: ignore[union-attr]
    (histogram,) = families["kernel_seconds"]
    assert sum(histogram.counts) == sample.count  # type: ignore[union-attr]
    assert histogram.sum == pytest.approx(sample.total_ns / 1e9)  # type: ignore[union-attr]
    assert samples_of(program.runtime, "gpu_launches_total") == {("matched",): sample.count}
    assert program.outcomes() == {"ok": 1}
    assert (
        0 < total_of(program.runtime, "gpu_busy_seconds_total") < total_of(program.runtime, "gpu_watched_seconds_total")
    )
    assert total_of(program.runtime, "self_seconds_total") > 0
    ((info, _),) = samples_of(program.runtime, "gpu_timing_info").items()
    assert info == ("cupti", "CUPTI 130000, records of 216 bytes, self-test passed")


def test_a_window_without_a_kernel_watched_an_idle_gpu(program: Program) -> None:
    assert program.window(0.03)
    busy, watched = (total_of(program.runtime, f"gpu_{what}_seconds_total") for what in ("busy", "watched"))
    assert program.times.window(0.05) == ()
    assert program.outcomes() == {"ok": 1, "idle": 1}
    assert total_of(program.runtime, "gpu_busy_seconds_total") == busy
    assert 0.05 <= total_of(program.runtime, "gpu_watched_seconds_total") - watched < 1


def test_windows_open_by_themselves_and_stop(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonprobe.gpu.times.WAITING_SECONDS", 0.01)
    monkeypatch.setattr("tritonprobe.gpu.budget.LEAST_PERIOD", 0.01)
    program.times.budget.share = 1.0
    program.times.budget.period = 0.01
    program.times.start()
    deadline = time.monotonic() + 20
    while program.outcomes().get("ok", 0) < 3 and time.monotonic() < deadline:
        program.launch()
    program.times.stop()
    assert program.outcomes()["ok"] >= 3
    assert not program.cupti.on
    switches = list(program.cupti.switches)
    time.sleep(0.1)
    assert program.cupti.switches == switches


def test_cupti_is_there_only_while_a_window_is_open(program: Program) -> None:
    assert program.window()
    assert program.window()
    assert program.cupti.switches == ["attach", "on", "off", "leave"] * 2


def test_cupti_leaves_if_nobody_wants_a_window_after_its_self_test(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritonprobe.gpu.times.WAITING_SECONDS", 0.01)
    made = threading.Event()

    def tested(*given: Any) -> CuptiClock:
        clock = program.make_clock(*given)
        program.cupti.attach()
        program.times.stop()
        made.set()
        return clock

    monkeypatch.setattr(clock_module, "make_clock", tested)
    program.times.start()
    assert made.wait(20)
    with program.times._turn_lock:
        assert program.cupti.switches == ["attach", "leave"]


def test_a_program_with_graphs_is_left_alone(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    assert program.window()
    program.graphs = True
    assert program.window() == ()
    assert program.cupti.switches == ["attach", "on", "off", "leave"]
    method, why = program.times.info
    assert method == "none"
    assert "this process has CUDA graphs" in why
    assert "TRITONPROBE_GPU_WINDOWS=graphs" in caplog.text


def test_asked_to_measure_graphs_too_cupti_stays(program: Program) -> None:
    program.graphs = True
    program.times._program = dataclasses.replace(program.times._program, graphs_too=True)
    assert program.window()
    assert program.window()
    assert program.cupti.switches == ["attach", "on", "off"] * 2


def test_where_cupti_has_left_it_does_not_come_back_to_graphs(program: Program) -> None:
    """`gpu.bench` has taken it out, before graphs were to be measured."""
    program.times._program = dataclasses.replace(program.times._program, graphs_too=True)
    program.cupti.left = True
    assert program.window()
    program.cupti.attached = False
    program.graphs = True
    assert program.window() == ()
    assert program.cupti.switches == ["attach", "on", "off"]
    why = "this process has CUDA graphs, and CUPTI has left it once: a replay might fail (docs/gpu-times.md)"
    assert program.times.info == ("none", why)


def test_what_another_measures_is_left_to_it_when_windows_end(program: Program) -> None:
    assert program.window()
    program.cupti.switches.clear()
    with program.cupti.use:  # as `gpu.bench` has it
        program.cupti.attach()
        program.cupti.outstanding = 1
        thread = threading.Thread(target=program.times.stop)
        thread.start()
        thread.join()
    assert program.cupti.switches == ["attach"]
    assert program.cupti.outstanding == 1


def test_stopped_while_another_measures_no_window_opens_after_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times_module, "WAITING_SECONDS", 0.01)
    monkeypatch.setattr(times_module, "LEAVING_SECONDS", 0.01)
    program.times.budget.period = 0.01
    with program.cupti.use:
        program.times.start()
        while program.times._turn_lock.acquire(blocking=False):  # until the window's thread waits for CUPTI
            program.times._turn_lock.release()
            time.sleep(0.001)
        while program.times._clock is None:
            time.sleep(0.001)
        time.sleep(0.02)
        program.times.stop()
    with program.times._turn_lock:
        assert program.cupti.switches == []


def test_cupti_leaves_after_a_self_test_that_failed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(cupti: FakeCupti, driver: Any, device: int) -> Any:
        cupti.attach()
        raise CuptiError("self-test: correlation ids do not rise in launch order")

    driver = SimpleNamespace(active_device=lambda: 0, relax=lambda: None)
    monkeypatch.setattr(clock_module, "Driver", lambda: driver)
    monkeypatch.setattr(clock_module, "the_cupti", lambda: program.cupti)
    monkeypatch.setattr(clock_module, "marker_of", fails)
    adapter = program.runtime.adapter
    clock = make_clock(adapter.windows, program.runtime.ledger, program.times, program.runtime.fault, lambda: True)
    assert clock.method == "event"
    assert "self-test: correlation ids do not rise" in clock.why
    assert program.cupti.switches == ["attach", "leave"]


def test_when_the_first_capture_begins_cupti_has_left(program: Program) -> None:
    thread = threading.Thread(target=lambda: program.times.window(5))
    thread.start()
    while not program.cupti.on:
        time.sleep(0.001)
    program.times.begins("first capture")
    assert program.cupti.switches == ["attach", "on", "off", "leave"]
    program.graphs = True
    program.times.ends("first capture")
    thread.join(2)
    assert not thread.is_alive()


def test_windows_wait_for_the_program_to_be_ready(program: Program) -> None:
    program.ready = False
    assert program.times._begin() is None
    assert program.made == 0
    program.ready = True
    assert program.times._begin() is not None


def test_a_program_that_never_says_it_is_ready_has_a_minute(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.ready = False
    assert program.times._begin() is None
    monkeypatch.setattr(times_module, "PATIENCE_SECONDS", 0.0)
    assert program.times._begin() is not None


def test_a_window_asked_for_does_not_wait(program: Program) -> None:
    program.ready = False
    assert program.window()


def test_a_fork_ends_the_window_and_cupti_has_left_by_then(program: Program) -> None:
    thread = threading.Thread(target=lambda: program.times.window(5))
    thread.start()
    while not program.cupti.on:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(0 if program.cupti.switches == ["attach", "on", "off", "leave"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join(2)
    assert not thread.is_alive()
    assert program.window()


def test_a_profiler_gets_cupti_at_once_and_gives_it_back(program: Program) -> None:
    assert program.window()
    program.cupti.switches.clear()
    thread = threading.Thread(target=lambda: program.times.window(5))
    thread.start()
    while not program.cupti.on:
        time.sleep(0.001)
    program.times.begins("torch.profiler")
    assert not program.cupti.on
    thread.join(2)
    assert program.times.window(0.01) == ()
    # The window's thread found the profiler at work, and left CUPTI to it.
    assert program.cupti.switches == ["attach", "on", "off"]
    program.times.ends("torch.profiler")
    assert program.window()
    assert program.cupti.switches == ["attach", "on", "off", "attach", "on", "off", "leave"]
    assert program.outcomes() == {"ok": 2, "cut": 1}


def test_another_who_took_the_callbacks_is_noticed(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    assert program.window()
    program.cupti.enable = lambda: None  # type: ignore[method-assign]  # records go to somebody else
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert program.window() == ()
    assert program.outcomes() == {"ok": 1, "taken": 3}
    assert program.times.info == ("none", "another profiler holds CUPTI")
    assert [r.message for r in caplog.records] == ["tritonprobe: GPU times by none: another profiler holds CUPTI"]


def test_records_that_cannot_be_read_switch_it_off_with_one_line(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Any:
        raise RecordError("a record of kind 4 among the kernels")

    program.cupti.records = fails  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert program.window() == ()
    assert program.outcomes() == {"misread": 3}
    assert program.times.info == ("none", "a record of kind 4 among the kernels")
    assert len(caplog.records) == 1


def test_a_forked_child_is_off_and_launches(program: Program) -> None:
    assert program.window()
    child = os.fork()
    if child == 0:
        program.launch()
        os._exit(0 if program.times.info == ("none", "forked") and not program.cupti.on else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert program.times.info[0] == "cupti"


def test_a_program_that_a_profiler_started_is_left_alone(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert program.window() == ()
    assert program.times.info == ("none", "NSYS_PROFILING_SESSION_ID is set: another profiler runs this program")
    assert program.made == 0


def test_off_by_default_and_then_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys, tritonprobe\n"
        "with __import__('tritonprobe.testing').testing.compile_only():\n"
        "    tritonprobe.instrument()\n"
        "print([m for m in sys.modules if m.startswith('tritonprobe.gpu')])\n"
        "try: tritonprobe.gpu_window()\n"
        "except tritonprobe.SettingError as error: print(error)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRITONPROBE_")}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[]",
        'GPU times are off: set TRITONPROBE_GPU_WINDOWS=1, or configure(gpu_windows="on")',
    ]


def test_on_the_compile_only_device_there_are_none(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Runtime(Settings(gpu_windows="on"))
    monkeypatch.setattr(runtime_module, "_current", on)
    tritonprobe.instrument()
    assert tritonprobe.gpu_window(0.01) == ()
    assert on.adapter.gpu is not None
    assert on.adapter.gpu.times.info == ("none", "launches do nothing on the compile-only device")
    tritonprobe.uninstrument()


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def capture_begin(self, fail: bool = False) -> None:
        if fail:
            raise RuntimeError("no capture")

    def capture_end(self) -> None:
        """The graph is there."""

    def reset(self) -> None:
        """The graph is gone, its object is not."""


def test_a_capture_tells_what_was_launched_in_it(program: Program) -> None:
    told: list[Any] = []
    captures = Captures(
        program.runtime.adapter.windows,
        lambda what: told.append(f"{what} begins"),
        lambda what: told.append(f"{what} ends"),
        lambda launches, alive: told.append((launches, alive)),
        told.append,
        program.runtime.fault,
    )
    plain = vars(Graph).copy()
    captures._patch(SimpleNamespace(CUDAGraph=Graph, is_current_stream_capturing=lambda: True))  # type: ignore[arg-type]
    graph = Graph()
    graph.capture_begin()
    program.launch()
    program.kernel[(0,)](X, 16, 16, BLOCK=64)
    graph.capture_end()
    program.launch()
    with pytest.raises(RuntimeError, match="no capture"):
        graph.capture_begin(fail=True)
    begins, ends, (launches, alive), *rest = told
    assert [begins, ends, *rest] == ["first capture begins", "first capture ends", "capture begins", "capture ends"]
    (((name, grid), (kernel, bucket)),) = launches
    assert (name, grid >> 32, kernel.rpartition(".")[2], bucket) == ("left_kernel", 5, "left_kernel", "n<=16,m<=16")
    assert alive()
    del graph
    assert not alive()
    assert captures.remove() == []
    assert vars(Graph) == plain


def test_a_capture_that_could_not_end_the_window_does_not_end_all_windows(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        program.cupti.on = False
        raise CuptiError("cuptiActivityDisable: CUPTI_ERROR_UNKNOWN (999)")

    nothing = lambda *_: None  # noqa: E731
    faults: list[str] = []
    windows, times = program.runtime.adapter.windows, program.times
    captures = Captures(windows, times.begins, times.ends, nothing, nothing, faults.append)
    captures._patch(SimpleNamespace(CUDAGraph=Graph, is_current_stream_capturing=lambda: True))  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: times.window(5))
    thread.start()
    while not program.cupti.on:
        time.sleep(0.001)
    with monkeypatch.context() as broken:
        broken.setattr(program.cupti, "disable", fails)
        graph = Graph()
        graph.capture_begin()
        graph.capture_end()
    thread.join(2)
    captures.remove()
    assert faults == ["captures"]
    assert not times.is_busy()
    assert program.window()


@pytest.mark.parametrize("why", ["mixed", "large"])
def test_a_capture_whose_launches_nobody_knows_is_told_of(
    program: Program, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures_module, "MAX_LAUNCHES", 2)
    kept: list[Any] = []
    lost: list[str] = []
    nothing = lambda what: None  # noqa: E731
    windows, fault = program.runtime.adapter.windows, program.runtime.fault
    captures = Captures(windows, nothing, nothing, lambda *each: kept.append(each), lost.append, fault)
    captures._patch(SimpleNamespace(CUDAGraph=Graph, is_current_stream_capturing=lambda: True))  # type: ignore[arg-type]
    graphs = [Graph(), Graph()] if why == "mixed" else [Graph()]
    for graph in graphs:
        graph.capture_begin()
    for _ in range(1 if why == "mixed" else 2):
        program.launch()
    for graph in graphs:
        graph.capture_end()
    captures.remove()
    assert lost == [why] * len(graphs)
    assert kept == []


def test_a_capture_that_begins_twice_goes_on(program: Program) -> None:
    told: list[str] = []
    kept: list[Any] = []
    windows, fault = program.runtime.adapter.windows, program.runtime.fault
    captures = Captures(
        windows,
        lambda what: told.append(f"{what} begins"),
        lambda what: told.append(f"{what} ends"),
        lambda launches, _: kept.append(launches),
        told.append,
        fault,
    )
    captures._patch(SimpleNamespace(CUDAGraph=Graph, is_current_stream_capturing=lambda: True))  # type: ignore[arg-type]
    graph = Graph()
    graph.capture_begin()
    program.launch()
    with pytest.raises(RuntimeError, match="no capture"):
        graph.capture_begin(fail=True)
    program.launch()
    graph.capture_end()
    captures.remove()
    assert told == ["first capture begins", "first capture ends"]
    assert [len(launches) for launches in kept] == [2]


def test_captures_that_wait_for_a_window_are_bounded_by_their_launches(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritonprobe.gpu.times.MAX_NODES", 10)
    monkeypatch.setattr("tritonprobe.gpu.times.MAX_CAPTURES", 6)
    about = AboutProgram(lambda: None, str, lambda: True, lambda: False, graphs_too=True)
    times = GpuTimes(program.runtime.ledger, program.runtime.fault, program.runtime.adapter.windows, about)
    for count in (4, 0, 0, 0, 0, 0, 0, 5, 12):  # those without launches of ours are in nobody's place
        times.captured([(("a", 1), ("m.a", "all"))] * count, lambda: True)
    assert [len(launches) for launches, _ in times.captures] == [12], "the latest is kept in any case"
    times.captured([(("a", 1), ("m.a", "all"))], lambda: True)
    assert [len(launches) for launches, _ in times.captures] == [1]
    assert samples_of(program.runtime, "gpu_captures_dropped_total") == {("bound",): 3}


@pytest.mark.parametrize("graphs_too", [True, False])
def test_captures_given_up_are_counted_and_said_once(
    program: Program, graphs_too: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where graphs are not measured there is nothing to give up."""
    monkeypatch.setattr("tritonprobe.gpu.times.MAX_CAPTURES", 2)
    monkeypatch.setattr("tritonprobe.gpu.graphs.MAX_CAPTURES", 2)
    about = AboutProgram(lambda: None, str, lambda: True, lambda: False, graphs_too=graphs_too)
    times = program.times = GpuTimes(
        program.runtime.ledger, program.runtime.fault, program.runtime.adapter.windows, about
    )
    captured = [([(("a", grid), ("m.a", f"n={grid}"))], lambda: True) for grid in range(6)]
    for launches, alive in captured[:4]:  # between two windows
        times.captured(launches, alive)
    times.not_captured("mixed")
    program.window()
    for launches, alive in captured[4:]:  # beside those that the windows' clock keeps
        times.captured(launches, alive)
    program.window()
    counted = samples_of(program.runtime, "gpu_captures_dropped_total")
    assert counted == ({("bound",): 4, ("mixed",): 1} if graphs_too else {})
    said = [record.message for record in caplog.records if "gpu_captures_dropped_total" in record.message]
    assert len(said) == (2 if graphs_too else 0)


@pytest.mark.parametrize("emptied", [Graph.reset, Graph.capture_begin], ids=["reset", "captured again"])
def test_a_graph_that_is_emptied_is_not_alive(program: Program, emptied: Callable[[Graph], None]) -> None:
    lives: list[Callable[[], bool]] = []
    nothing = lambda what: None  # noqa: E731
    captures = Captures(
        program.runtime.adapter.windows,
        nothing,
        nothing,
        lambda _, alive: lives.append(alive),
        nothing,
        program.runtime.fault,
    )
    captures._patch(SimpleNamespace(CUDAGraph=Graph, is_current_stream_capturing=lambda: True))  # type: ignore[arg-type]
    graph, other = Graph(), Graph()
    for each in (graph, other):
        each.capture_begin()
        each.capture_end()
    assert [alive() for alive in lives] == [True, True]
    getattr(graph, emptied.__name__)()
    assert [alive() for alive in lives] == [False, True]
    captures.remove()


def test_profilers_are_told_of_once_from_their_first_start_to_their_end() -> None:
    told: list[str] = []
    calls: list[str] = []
    module = SimpleNamespace(
        **{
            name: (lambda name=name: calls.append(name))
            for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
        }
    )
    plain = dict(vars(module))
    profilers = Profilers(
        lambda who: told.append(f"{who} begins"), lambda who: told.append(f"{who} ends"), calls.append
    )
    profilers._patch_torch(module)  # type: ignore[arg-type]
    for _ in range(2):
        module._prepare_profiler()
        module._enable_profiler()
        module._disable_profiler()
    assert told == ["torch.profiler begins", "torch.profiler ends"] * 2
    assert calls == ["_prepare_profiler", "_enable_profiler", "_disable_profiler"] * 2
    assert profilers.remove() == []
    assert vars(module) == plain


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("triton_kernel", "triton_kernel"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
         "at::native::vectorized_elementwise_kernel"),
        ("_Znot_a_name", "_Znot_a_name"),
        ("void ns::(anonymous namespace)::f<int, (bool)1>(int*)", "ns::(anonymous namespace)::f"),
    ],
)  # fmt: skip
def test_foreign_names_are_readable_and_few(mangled: str, name: str) -> None:
    assert readable(mangled) == name
