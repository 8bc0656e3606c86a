"""Times by events on real Triton launches: each pair comes back, and what they say is counted."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import tritonprobe
from tests.gpu_records.test_window import Server, X
from tritonprobe.gpu import events
from tritonprobe.gpu.events import PAIRS, EventClock
from tritonprobe.gpu.publish import Published
from tritonprobe.runtime import Runtime

MS = 0.25


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, enable_timing: bool) -> None:
        self.recorded = 0

    def record(self) -> None:
        self.recorded += 1

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded == end.recorded > 0
        return MS


@pytest.fixture
def server(runtime: Runtime) -> Server:
    tritonprobe.instrument()
    return Server(runtime)


@pytest.fixture
def clock(runtime: Runtime, server: Server) -> EventClock:
    clock = EventClock("AMD: CUPTI is NVIDIA's", server.windows, Published(runtime.ledger), runtime.fault)
    cuda = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False)
    clock._torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip="6.0"))
    return clock


def launch(server: Server, times: int = 1) -> None:
    for _ in range(times):
        server.kernels[0][(3,)](X, 3, 16, BLOCK=64)


def serving(server: Server, stop: threading.Event) -> threading.Thread:
    def serve() -> None:
        while not stop.is_set():
            launch(server)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_some_launches_are_timed_and_all_pairs_come_back(clock: EventClock, server: Server) -> None:
    for expected in (PAIRS, 33):  # from the second window on they are spread over it
        looked = clock.look(0.0, lambda _: launch(server, 100))
        assert looked.outcome == "ok"
        assert looked.launches == 100
        (sample,) = looked.samples
        assert (sample.method, sample.count) == ("event", min(expected, PAIRS))
        assert sample.total_ns == sample.count * round(MS * 1e6)
        assert len(clock._free) == PAIRS


def test_a_launch_that_outlives_its_window_gives_its_pair_back(clock: EventClock, server: Server) -> None:
    for launcher in server.launchers:
        launcher.slow = 0.005
    stop = threading.Event()
    thread = serving(server, stop)
    for _ in range(10):
        clock.look(0.0, lambda _: time.sleep(0.002))
    stop.set()
    thread.join()
    assert len(clock._free) == clock._made > 0


def test_launches_that_are_too_many_give_their_pairs_back(
    clock: EventClock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LAUNCHES", 10)
    looked = clock.look(0.0, lambda _: launch(server, 20))
    assert looked.launches == 10
    assert len(clock._free) == clock._made > 0


def test_pairs_that_cannot_be_read_come_back_all_the_same(clock: EventClock, server: Server, monkeypatch: Any) -> None:
    def fails(start: Event, end: Event) -> float:
        raise RuntimeError("invalid resource handle")

    monkeypatch.setattr(Event, "elapsed_time", fails)
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        clock.look(0.0, lambda _: launch(server))
    assert len(clock._free) == clock._made == 1
