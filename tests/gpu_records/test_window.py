"""Windows on real Triton launches (compile-only) whose launchers write CUPTI's records: each label right or dropped."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import tritonprobe
from tests.adapter.conftest import fresh
from tests.gpu_records.fake_gpu import FakeCupti, FakeLauncher, sums
from tritonprobe.adapter.trial_stacks import Strangers
from tritonprobe.gpu.analysis import Found, analyse
from tritonprobe.gpu.cupti import text_at
from tritonprobe.gpu.graphs import Graphs
from tritonprobe.gpu.window import Taken, Window
from tritonprobe.runtime import Runtime

X = torch.empty(64)


@triton.jit
def left_kernel(x, n, m, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n + m)


@triton.jit
def right_kernel(x, n, m, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n - m)


class Server:
    """Two kernels, launched and warm, on a GPU that never was."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.cupti = FakeCupti()
        self.kernels = [fresh(left_kernel), fresh(right_kernel)]
        self.launchers: list[FakeLauncher] = []
        for kernel in self.kernels:
            for n in (3, 16):
                for m in (3, 16):
                    compiled = kernel[(1,)](X, n, m, BLOCK=64)
                    if not isinstance(compiled._run, FakeLauncher):
                        compiled._run = FakeLauncher(self.cupti, compiled.name)
                        self.launchers.append(compiled._run)

    @property
    def windows(self) -> Any:
        return self.runtime.adapter.windows

    def look(self, work: Callable[[], None], seconds: float = 0.03) -> tuple[Taken | str, Found | None]:
        """A window, while `work` runs again and again on this thread."""
        window = Window(self.cupti, self.windows)  # type: ignore[arg-type]  # a fake
        found: list[Taken | str] = []
        thread = threading.Thread(target=lambda: found.append(window.run(seconds)))
        thread.start()
        while thread.is_alive():
            work()
        thread.join()
        return found[0], self.analysed(found[0])

    def analysed(self, taken: Taken | str) -> Found | None:
        if isinstance(taken, str):
            return None
        return analyse(taken.launches, taken.records, taken.edges, taken.off_ns, Graphs(), text_at, str)


@pytest.fixture
def server(runtime: Runtime) -> Server:
    tritonprobe.instrument()
    return Server(runtime)


def wrong_labels(taken: Taken, found: Found, truth: Callable[[str, int], str]) -> list[str]:
    """Records whose label is not the one that their grid was chosen for."""
    names = [text_at(address) for address in taken.records.name.tolist()]
    grids = (taken.records.grid >> np.uint64(32)).tolist()
    labels = found.launched.label(taken.records.which).tolist()
    return [
        f"{name} {grid}: {found.launched.labels[label]}"
        for name, grid, label in zip(names, grids, labels, strict=True)
        if label >= 0 and found.launched.labels[label][1] != truth(name, grid)
    ]


def test_every_launch_of_one_thread_is_right(server: Server) -> None:
    r = random.Random(1)

    def work() -> None:
        grid = r.randrange(0, 40)  # 0: an empty grid
        server.kernels[grid % 2][(grid,)](X, 2 ** (grid % 5 + 1), 16, BLOCK=64)

    taken, found = server.look(work)
    assert isinstance(taken, Taken)
    assert found is not None
    assert len(taken.records) > 20
    assert wrong_labels(taken, found, lambda _, grid: f"n<={2 ** (grid % 5 + 1)},m<=16") == []
    assert found.launched.matched == len(taken.records)
    assert len(taken.records.start[found.launched.records]) == len(taken.records)
    assert {label[0].rpartition(".")[2] for label in found.labels} == {"left_kernel", "right_kernel"}


def test_one_grid_with_many_buckets_is_told_apart_by_order(server: Server) -> None:
    """The kernel and the grid are always the same, so only the order of launches can tell."""
    r = random.Random(2)
    kernel = server.kernels[0]

    def work() -> None:
        kernel[(7,)](X, 2 ** r.randrange(1, 8), 16, BLOCK=64)

    taken, found = server.look(work)
    assert isinstance(taken, Taken)
    assert found is not None
    assert found.launched.matched == len(taken.records) > 20
    said = [found.launched.labels[label][1] for label in found.launched.label(taken.records.which).tolist()]
    assert said == [f"n<={arguments[1]},m<=16" for arguments in server.cupti.truth]


@pytest.mark.parametrize("grids", [40, 2])
def test_four_threads_are_right_or_dropped(server: Server, grids: int) -> None:
    """With forty grids each has one bucket; with two, each stands for several, and order decides."""
    stop = threading.Event()
    labels: list[Counter[str]] = []

    def serve(seed: int) -> None:
        r = random.Random(seed)
        mine: Counter[str] = Counter()
        while not stop.is_set():
            grid = r.randrange(0, grids)
            n = 2 ** (grid % 5 + 1) if grids == 40 else 2 ** r.randrange(1, 6)
            server.kernels[grid % 2][(grid,)](X, n, 16, BLOCK=64)
            mine[f"n<={n}"] += 1
        labels.append(mine)

    for launcher in server.launchers:
        launcher.slow = 0.00005  # gives the interpreter's lock away, as the real one does
    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    looks = [server.look(lambda: time.sleep(0.001)) for _ in range(4)]
    stop.set()
    for thread in threads:
        thread.join()

    for taken, found in looks:
        assert isinstance(taken, Taken)
        assert found is not None
        assert len(taken.records) > 20
        if grids == 40:
            assert wrong_labels(taken, found, lambda _, grid: f"n<={2 ** (grid % 5 + 1)},m<=16") == []
            assert found.launched.matched > 0.9 * len(taken.records)


def test_a_launch_under_way_when_the_window_opens_is_waited_for(server: Server) -> None:
    for launcher in server.launchers:
        launcher.slow = 0.01
    began = threading.Event()

    def slow() -> None:
        began.set()
        server.kernels[0][(5,)](X, 16, 16, BLOCK=64)

    thread = threading.Thread(target=slow)
    thread.start()
    began.wait()
    time.sleep(0.003)
    taken = Window(server.cupti, server.windows).run(0.005)  # type: ignore[arg-type]
    thread.join()
    assert isinstance(taken, Taken)
    assert len(taken.records) == 0


def test_a_launch_that_hangs_keeps_the_window_shut(server: Server) -> None:
    for launcher in server.launchers:
        launcher.slow = 0.2
    thread = threading.Thread(target=lambda: server.kernels[0][(5,)](X, 16, 16, BLOCK=64))
    thread.start()
    time.sleep(0.05)
    assert Window(server.cupti, server.windows).run(0.005) == "unsettled"  # type: ignore[arg-type]
    thread.join()
    assert server.cupti.switches == []


def test_a_window_keeps_nothing_alive_that_other_threads_had_in_their_variables(server: Server) -> None:
    """Such as a CUDA graph, by a frame that was looked at; the collector is off, as it is in some servers."""

    class Graph:
        def replay(self) -> None:
            time.sleep(0)

    def replayed() -> weakref.ref[Graph]:
        graph = Graph()
        server.look(graph.replay, seconds=0.002)
        return weakref.ref(graph)

    def met() -> weakref.ref[Graph]:
        graph = Graph()
        Strangers().meet()
        return weakref.ref(graph)

    gc.disable()
    try:
        assert [replayed()() for _ in range(5)] == [None] * 5
        assert [met()() for _ in range(5)] == [None] * 5
    finally:
        gc.enable()


def test_cutting_a_window_switches_records_off_at_once(server: Server) -> None:
    window = Window(server.cupti, server.windows)  # type: ignore[arg-type]
    found: list[Taken | str] = []
    thread = threading.Thread(target=lambda: found.append(window.run(5)))
    thread.start()
    while not server.cupti.on:
        time.sleep(0.001)
    window.cut()
    assert not server.cupti.on
    thread.join(2)
    assert found == ["cut"]
    assert server.cupti.switches == ["on", "off"]


def test_lost_records_give_the_window_up(server: Server) -> None:
    def work() -> None:
        server.kernels[0][(5,)](X, 16, 16, BLOCK=64)
        server.cupti.missing = 1

    assert server.look(work)[0] == "dropped"


def test_what_somebody_else_launched_keeps_its_name(server: Server) -> None:
    def work() -> None:
        server.kernels[0][(5,)](X, 16, 16, BLOCK=64)
        server.cupti.launched("library_kernel", (80, 1, 1))

    _, found = server.look(work)
    assert found is not None
    assert {label for label in found.labels if label[1] == "external"} == {("library_kernel", "external")}
    assert found.launched.matched > 0


def test_a_kernel_of_ours_that_somebody_else_launched_too_is_dropped(server: Server) -> None:
    """Its records are more than the launches we saw, so nobody can say which are whose."""

    def work() -> None:
        compiled = server.kernels[0][(5,)](X, 16, 16, BLOCK=64)
        server.kernels[1][(5,)](X, 16, 16, BLOCK=64)
        server.cupti.launched(compiled.name, (5, 1, 1))

    _, found = server.look(work)
    assert found is not None
    assert {label[0].rpartition(".")[2] for label, _, _ in sums(found)} == {"right_kernel"}
    assert found.launched.dropped["misaligned"] > 0


def test_launches_that_raise_leave_no_record_and_spoil_nothing(server: Server) -> None:
    compiled = server.kernels[1][(1,)](X, 3, 3, BLOCK=64)

    def raises(*args: Any) -> None:
        raise RuntimeError("the driver's own")

    plain, compiled._run = compiled._run, raises

    def work() -> None:
        server.kernels[0][(5,)](X, 16, 16, BLOCK=64)
        with pytest.raises(RuntimeError):
            server.kernels[1][(5,)](X, 3, 3, BLOCK=64)

    taken, found = server.look(work)
    assert isinstance(taken, Taken)
    assert found is not None
    assert found.launched.matched == len(taken.records) > 0
    assert compiled._run is raises
    compiled._run = plain
