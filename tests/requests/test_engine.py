"""An engine of several processes: a stall in a worker is charged to the requests that the server's process holds.

Each scenario is played by real processes, which log when they stalled by the clock that all processes share.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tritonprobe.bus import Bus
from tritonprobe.model import Event, Exposure, RequestCost
from tritonprobe.requests import Requests, windows
from tritonprobe.requests.threads import this_thread

now = time.monotonic_ns


class Process:
    """One process of an engine, as the runtime wires it: cold calls in progress and finished, requests, steps."""

    def __init__(self, folder: Path, engine: str = "llm") -> None:
        self.errors: list[str] = []
        self.finished: list[RequestCost] = []
        self.open: list[tuple[int, int]] = []
        bus = Bus()
        bus.subscribe(self._take)
        self.requests = Requests(bus, on_error=self.errors.append, open_stalls=lambda: self.open)
        self.requests.join(folder, engine)

    def _take(self, event: Event) -> None:
        assert isinstance(event, RequestCost)
        self.finished.append(event)

    def begin_stall(self) -> int:
        start = now()
        self.open.append((start, this_thread()))
        self.requests.show_open()
        return start

    def end_stall(self, start: int) -> tuple[int, int]:
        end = now()
        self.requests.stall(start, end, this_thread())
        self.open.clear()
        self.requests.show_open()
        return start, end

    def stall(self, seconds: float = 0.02) -> tuple[int, int]:
        start = self.begin_stall()
        time.sleep(seconds)
        return self.end_stall(start)


def _worker(folder: Path, pipe: Connection) -> None:
    """Runs steps on demand, each with a stall in it, and tells when that was; ends with `None`."""
    process = Process(folder)
    step = None
    pipe.send("here")
    while (asked := pipe.recv()) is not None:
        what, step_id = asked
        if what == "stall":
            with process.requests.step((), id=step_id):
                pipe.send(process.stall())
        elif what == "open":
            step = process.requests.step((), id=step_id).begin()
            pipe.send(process.begin_stall())
        elif what == "close":
            start, _ = process.open[0]
            pipe.send(process.end_stall(start))
            assert step is not None
            step.end()
        elif what == "die":
            os._exit(1)


class Worker:
    def __init__(self, folder: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_worker, args=(folder, theirs))
        self._process.start()
        assert self._pipe.recv() == "here"

    def ask(self, what: str, step: str | int | None = None) -> Any:
        self._pipe.send((what, step))
        return None if what == "die" else self._pipe.recv()

    def stop(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.stop()


@pytest.fixture
def core(tmp_path: Path) -> Process:
    """The process that schedules: it knows who is in which step, and holds no request."""
    return Process(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Process:
    """The process that holds the requests."""
    return Process(tmp_path)


def test_a_workers_stall_is_in_batch_for_its_step_and_queued_for_the_rest(worker, core, server):
    inside, waiting = server.requests.request("inside"), server.requests.request("waiting")
    with core.requests.step([("inside", 7)], id=1):
        start, end = worker.ask("stall", 1)
    late = server.requests.request("late")
    for request in (inside, waiting, late):
        request.token()
        request.finish()
    costs = {cost.id: cost.before for cost in server.finished}
    assert costs == {
        "inside": Exposure(in_batch_ns=end - start),
        "waiting": Exposure(queued_ns=end - start),
        "late": Exposure(),
    }
    assert server.errors == core.errors == []


def test_where_steps_overlap_their_ids_say_whose_stall_it_is(worker, core, server):
    """As with asynchronous scheduling: step 2 is handed over while step 1 runs, and step 1 compiles."""
    first, second = server.requests.request("first"), server.requests.request("second")
    one = core.requests.step(["first"], id=1).begin()
    two = core.requests.step(["second"], id=2).begin()
    start, end = worker.ask("stall", 1)
    one.end()
    two.end()
    first.finish()
    second.finish()
    costs = {cost.id: cost.before for cost in server.finished}
    assert costs == {"first": Exposure(in_batch_ns=end - start), "second": Exposure(queued_ns=end - start)}


def test_without_ids_overlapping_steps_share_the_stall(worker, core, server):
    """An upper bound, as always."""
    both = [server.requests.request("a"), server.requests.request("b")]
    one = core.requests.step(["a"]).begin()
    two = core.requests.step(["b"]).begin()
    start, end = worker.ask("stall")
    one.end()
    two.end()
    for request in both:
        request.finish()
    assert [cost.before for cost in server.finished] == [Exposure(in_batch_ns=end - start)] * 2


def test_two_ranks_that_stall_at_once_are_one_stall(tmp_path, worker, core, server):
    other = Worker(tmp_path)
    try:
        request = server.requests.request("r")
        with core.requests.step(["r"], id=1):
            starts = [worker.ask("open", 1), other.ask("open", 1)]
            time.sleep(0.01)
            ends = [worker.ask("close")[1], other.ask("close")[1]]
        request.finish()
        assert server.finished[0].before == Exposure(in_batch_ns=max(ends) - min(starts))
    finally:
        other.stop()


def test_a_client_that_goes_away_during_a_workers_compile_stood_behind_it_until_then(worker, core, server):
    request = server.requests.request("r")
    step = core.requests.step(["r"], id=1).begin()
    start = worker.ask("open", 1)
    time.sleep(0.01)
    request.finish(error="client_gone")
    (cost,) = server.finished
    assert cost.before.total_ns == cost.end_ns - start
    worker.ask("close")
    step.end()
    assert server.errors == core.errors == []


def test_a_worker_that_dies_in_its_compile_stalls_nobody_any_more(worker, core, server):
    worker.ask("open", 1)
    worker.ask("die")
    worker.stop()
    request = server.requests.request("r")
    request.finish()
    assert server.finished[0].before == Exposure()


def test_the_parts_of_a_life_come_from_the_process_that_ran_it(worker, core, server):
    request = server.requests.request("r")
    handle = core.requests.request("r", record=False)
    time.sleep(0.01)
    with core.requests.step([handle], id=1) as step:
        time.sleep(0.01)
        start, end = worker.ask("stall", 1)
        began = step.start_ns
    handle.finish()
    time.sleep(0.005)
    request.token()
    request.finish()
    assert core.finished == []  # it is the server's to publish
    (cost,) = server.finished
    assert cost.parts is not None
    assert cost.before == Exposure(in_batch_ns=end - start)
    assert cost.parts.exposure_ns == end - start
    assert cost.parts.queue_ns == began - cost.start_ns
    assert 10_000_000 <= cost.parts.execution_ns <= cost.end_ns - began - (end - start) - 5_000_000
    assert cost.parts.remainder_ns >= 5_000_000
    life = cost.parts
    assert (
        life.queue_ns + life.execution_ns + life.exposure_ns + life.fallback_ns + life.remainder_ns
        == cost.end_ns - cost.start_ns
    )


def test_engines_of_other_names_share_nothing(tmp_path, worker, core):
    other = Process(tmp_path, engine="another")
    request = other.requests.request("r")
    with core.requests.step(["r"], id=1):
        worker.ask("stall", 1)
    request.finish()
    assert other.finished[0].before == Exposure()


def test_a_stall_of_another_host_is_charged_to_its_step(tmp_path):
    """Its clock is another one: only the distance from the step's beginning and the length mean anything here."""
    head, remote = Process(tmp_path / "nowhere"), Process(tmp_path / "nowhere")
    assert head.errors == ["requests"]  # no folder to share: said, and no more than that
    inside, waiting = head.requests.request("inside"), head.requests.request("waiting")
    with head.requests.step([inside], id=5) as step:
        with remote.requests.step((), id=5) as far:
            start, end = remote.stall()
            told = far.stalls()
        assert told == [(start - far.start_ns, end - start)]
        step.charge(told)
    inside.finish()
    waiting.finish()
    charged = {cost.id: cost.before for cost in head.finished}
    assert charged == {"inside": Exposure(in_batch_ns=end - start), "waiting": Exposure(queued_ns=end - start)}


@pytest.mark.parametrize("told", [[(-1, 5)], [(0, -5)], [("a", 1)], None, [3]])
def test_what_is_no_list_of_stalls_is_counted_and_harmless(tmp_path, told):
    process = Process(tmp_path)
    request = process.requests.request("r")
    with process.requests.step([request]) as step:
        step.charge(told)
    request.finish()
    assert process.errors == ["requests"]
    assert process.finished[0].before == Exposure()


def test_stalls_told_after_the_step_are_late(tmp_path):
    process = Process(tmp_path)
    step = process.requests.step([])
    step.charge([(0, 5)])
    with step:
        pass
    step.end()  # twice is once
    step.charge([(0, 5)])
    assert process.errors == ["requests", "requests"]


def test_a_charged_stall_ends_with_its_step(tmp_path):
    process = Process(tmp_path)
    request = process.requests.request("r")
    with process.requests.step([request]) as step:
        step.charge([(0, 10**15)])
    request.finish()
    cost = process.finished[0]
    assert cost.before.total_ns <= cost.end_ns - cost.start_ns


def test_threads_that_hear_and_boil_down_at_once_do_not_wait_for_each_other(tmp_path, monkeypatch):
    """Every step boils its requests down, every finish hears the peer, and the peer stalls all the time."""
    monkeypatch.setattr(windows, "MAX_WINDOWS", 1)
    process, peer = Process(tmp_path), Process(tmp_path)
    stop = threading.Event()

    def stalls() -> None:
        while not stop.is_set():
            peer.requests.stall(now(), now(), this_thread())
            stop.wait(0.0005)

    def serves() -> None:
        for _ in range(100):
            with process.requests.request() as request:
                for number in range(3):
                    with process.requests.step([request], id=number):
                        pass
                request.token()

    threads = [threading.Thread(target=serves, daemon=True) for _ in range(4)]
    noise = threading.Thread(target=stalls, daemon=True)
    for thread in (noise, *threads):
        thread.start()
    for thread in threads:
        thread.join(20)
    stop.set()
    assert not any(thread.is_alive() for thread in threads)
    assert len(process.finished) == 400
    assert process.errors == []


def _forked(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if check() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_tells_of_its_own_stalls(tmp_path, server):
    parent = Process(tmp_path)
    request = server.requests.request("r")

    def child() -> bool:
        parent.stall(0.005)
        return True

    assert _forked(child)
    request.finish()
    assert server.finished[0].before.queued_ns >= 5_000_000
    start, end = parent.stall(0.001)  # the parent's own journal is unharmed
    again = server.requests.request("again")
    again.finish()
    assert server.finished[1].before == Exposure()
    assert parent.errors == server.errors == []
    assert end > start


@contextmanager
def _folder_goes(path: Path) -> Iterator[None]:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    yield


def test_a_folder_that_is_removed_harms_nobody(tmp_path):
    folder = tmp_path / "ledger"
    folder.mkdir()
    process = Process(folder)
    request = process.requests.request("r")
    with _folder_goes(folder), process.requests.step([request]):
        process.stall(0.001)
    request.finish()
    assert process.finished[0].before.in_batch_ns >= 1_000_000
    assert process.errors == []


def test_an_engine_that_another_thread_has_just_left_is_in_nobodys_way(tmp_path: Path):
    """At the program's end, while a thread of it still serves: the cold call that it is in would raise into it."""
    server, worker = Process(tmp_path), Process(tmp_path)
    worker.end_stall(worker.begin_stall())
    engine = server.requests._engine
    assert engine is not None
    engine.leave()  # after a thread has looked for it, and before that uses it
    request, elsewhere = server.requests.request("r"), server.requests.request("e", record=False)
    with server.requests.step([request, elsewhere, "held elsewhere"], id=1):
        server.end_stall(server.begin_stall())
    elsewhere.finish()
    request.finish()
    assert (server.errors, [cost.id for cost in server.finished]) == ([], ["r"])
