"""Host launch time is sampled in windows, and outside of them a launch goes to Triton's own launcher."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh
from tritonprobe.adapter import windows as launch_windows
from tritonprobe.adapter.device import CompileOnlyLauncher
from tritonprobe.adapter.hosttime import HostTime
from tritonprobe.ledger import HistogramSample
from tritonprobe.runtime import Runtime

X = torch.empty(64)
NAME = "tests.adapter.kernels.add_kernel"


def sampled(runtime: Runtime) -> dict[str, HistogramSample]:
    for family in runtime.ledger.collect():
        if family.metric.name == "launch_host_seconds":
            return {s.labels[0]: s for s in family.samples if isinstance(s, HistogramSample)}
    return {}


def test_each_launch_in_a_window_is_one_sample(instrumented: Runtime, add: Any) -> None:
    window = instrumented.adapter.host_time
    add(X, X, X, 64)
    start = time.perf_counter()
    window.open()
    for _ in range(50):
        add(X, X, X, 64)
    window.close()
    wall = time.perf_counter() - start
    add(X, X, X, 64)

    (found,) = sampled(instrumented).values()
    assert sum(found.counts) == 50
    assert 0 < found.sum < wall


def test_after_a_window_the_launcher_is_tritons_own(instrumented: Runtime, add: Any) -> None:
    window = instrumented.adapter.host_time
    kernel = add(X, X, X, 64)
    own = kernel._run
    assert isinstance(own, CompileOnlyLauncher)
    window.open()
    assert kernel._run is not own
    window.close()
    assert kernel._run is own


def test_somebody_elses_launcher_set_in_a_window_is_left_alone(instrumented: Runtime, add: Any) -> None:
    window = instrumented.adapter.host_time
    kernel = add(X, X, X, 64)
    window.open()

    def theirs(*args: Any) -> None:
        return None

    kernel._run = theirs
    window.close()
    assert kernel._run is theirs


def test_a_launch_that_raises_in_a_window_raises_as_ever(instrumented: Runtime, add: Any) -> None:
    kernel = add(X, X, X, 64)

    def fails(*args: Any) -> None:
        raise RuntimeError("the driver's own")

    kernel._run = fails
    instrumented.adapter.host_time.open()
    with pytest.raises(RuntimeError, match="the driver's own"):
        add(X, X, X, 64)
    instrumented.adapter.host_time.close()
    assert kernel._run is fails
    assert sampled(instrumented) == {}


def test_uninstrument_in_a_window_gives_the_launchers_back(instrumented: Runtime, add: Any) -> None:
    kernel = add(X, X, X, 64)
    own = kernel._run
    instrumented.adapter.host_time.open()
    tritonprobe.uninstrument()
    assert kernel._run in (own, None)  # None once the compile-only device is gone


def test_windows_open_by_themselves(runtime: Runtime, add: Any) -> None:
    tritonprobe.probe(add.kernel)
    windows = runtime.adapter.windows
    window = HostTime(runtime.ledger, runtime.fault, every=0.02, windows=windows)
    kernel = add(X, X, X, 64)
    window.start()
    deadline = time.monotonic() + 30
    while not sampled(runtime) and time.monotonic() < deadline:
        add(X, X, X, 64)
    window.stop()

    assert sum(sampled(runtime)[NAME].counts) > 0
    assert isinstance(kernel._run, CompileOnlyLauncher)


def test_the_number_of_kernels_is_bounded(instrumented: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_windows, "MAX_KERNELS", 2)
    launched = [fresh(kernels.add_kernel)[(1,)](X, X, X, 64, BLOCK=block) for block in (32, 64, 128)]
    instrumented.adapter.host_time.open()
    assert [isinstance(kernel._run, CompileOnlyLauncher) for kernel in launched] == [False, False, True]
    instrumented.adapter.host_time.close()


def test_kernels_loaded_before_the_probe_came_are_seen(runtime: Runtime, add: Any) -> None:
    kernel = add(X, X, X, 64)
    tritonprobe.instrument()
    runtime.adapter.host_time.open()
    assert not isinstance(kernel._run, CompileOnlyLauncher)
    runtime.adapter.host_time.close()


def test_a_child_forked_in_a_window_launches_as_ever(instrumented: Runtime, add: Any) -> None:
    kernel = add(X, X, X, 64)
    instrumented.adapter.host_time.open()
    child = os.fork()
    if child == 0:
        os._exit(0 if isinstance(kernel._run, CompileOnlyLauncher) else 1)
    _, status = os.waitpid(child, 0)
    instrumented.adapter.host_time.close()
    assert os.waitstatus_to_exitcode(status) == 0
