"""A forked child: no lock of ours is held there for ever, and what its parent was doing is not in progress in it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tritonprobe import forks
from tritonprobe.adapter.calls import OpenCall
from tritonprobe.bus import Bus
from tritonprobe.forks import tell_in_child
from tritonprobe.ledger import MemoryLedger
from tritonprobe.ledger.derive import MemoryTier
from tritonprobe.ledger.schema import COLD_IN_PROGRESS
from tritonprobe.model import LaunchError, Variant
from tritonprobe.requests import Requests
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.shapes.buckets import BucketMemo
from tritonprobe.shapes.reasons import VariantMemory


def in_child(check: Callable[[], object], seconds: float = 10.0) -> str:
    """Runs `check` in a forked child: ``good`` if it returned in time, else what it did."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return "good" if status == 0 else f"status {status}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


class Told:
    def __init__(self, told: list[str], name: str, *, fails: bool = False) -> None:
        self.told, self.name, self.fails = told, name, fails
        tell_in_child(self)

    def after_fork(self) -> None:
        self.told.append(self.name)
        if self.fails:
            raise RuntimeError(self.name)


def test_the_living_are_told_in_the_order_in_which_they_came():
    told: list[str] = []
    living = [Told(told, "first"), Told(told, "fails", fails=True), Told(told, "gone"), Told(told, "last")]
    del living[2]
    gc.collect()

    def check() -> None:
        assert told == ["first", "fails", "last"]

    assert in_child(check) == "good"
    assert told == []
    assert all(owner in forks._living for owner in living)


def _subscribe() -> tuple[object, Callable[[], object]]:
    bus = Bus()
    return bus, lambda: bus.subscribe(print)


def _requests() -> tuple[object, Callable[[], object]]:
    requests = Requests(Bus())

    def use() -> None:
        with requests.request() as r, requests.step([r]):
            r.token()

    return requests, use


def _parents_request() -> tuple[object, Callable[[], object]]:
    requests = Requests(Bus())
    r = requests.request()

    def use() -> None:
        r.token()
        r.finish()

    return requests, use


def _stalls() -> tuple[object, Callable[[], object]]:
    requests = Requests(Bus())
    return requests._stalls, lambda: requests._stalls.add(0, 1, 1, needed_from=0)


def _variants() -> tuple[object, Callable[[], object]]:
    memory = VariantMemory()
    return memory, lambda: memory.explain(Variant("k", (), ()))


def _buckets() -> tuple[object, Callable[[], object]]:
    memo = BucketMemo(4)
    return memo, lambda: memo.admit("M=1")


def _ledger() -> tuple[object, Callable[[], object]]:
    ledger = MemoryLedger()
    return ledger, lambda: list(ledger.collect())


def _memory_tier() -> tuple[object, Callable[[], object]]:
    tier = MemoryTier()
    return tier, lambda: tier.samples({}, 0)


def _runtime() -> tuple[object, Callable[[], object]]:
    runtime = Runtime(Settings())
    return runtime, runtime._cold.show_oldest


@pytest.mark.parametrize(
    "make",
    [_subscribe, _requests, _parents_request, _stalls, _variants, _buckets, _ledger, _memory_tier, _runtime],
    ids=lambda make: make.__name__.strip("_"),
)
def test_a_lock_held_by_another_thread_does_not_hang_the_child(make):
    owner, use = make()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with owner._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        assert in_child(use) == "good"
    finally:
        done.set()
        thread.join()


def test_the_lock_around_the_runtime_is_renewed():
    """In a process of its own, for the runtime must not be there yet."""
    code = """
import os, threading
from tritonprobe import runtime
held, done = threading.Event(), threading.Event()
def hold():
    with runtime._lock:
        held.set()
        done.wait(30)
thread = threading.Thread(target=hold)
thread.start()
held.wait(30)
child = os.fork()
if child == 0:
    import signal
    signal.alarm(10)
    runtime.current()
    os._exit(0)
print(os.waitpid(child, 0)[1])
done.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("shared", [False, True], ids=["in memory", "in a file"])
def test_the_parents_cold_calls_are_not_in_progress_in_the_child(shared: bool, tmp_path: Path):
    runtime = Runtime(Settings(dir=str(tmp_path / "ledger") if shared else None))
    opened, done = threading.Event(), threading.Event()

    def in_progress() -> list[float]:
        return [s.value for f in runtime.ledger.collect() if f.metric is COLD_IN_PROGRESS for s in f.samples]  # type: ignore[union-attr]

    def compiles() -> None:
        runtime._cold.opened(OpenCall("k", "launch", None))
        opened.set()
        done.wait(30)

    def check() -> None:
        assert in_progress() == []
        with runtime.live.request():
            time.sleep(0.01)
        assert runtime.requests[-1].before.total_ns == 0

    thread = threading.Thread(target=compiles)
    thread.start()
    opened.wait(30)
    try:
        assert len(in_progress()) == 1
        assert in_child(check) == "good"
        assert len(in_progress()) == 1
    finally:
        done.set()
        thread.join()


def test_a_child_hears_of_events_itself():
    bus = Bus()
    heard: list[object] = []
    bus.subscribe(heard.append)
    event = LaunchError("k", "ValueError", "launch")

    def check() -> None:
        bus.publish(event)
        assert heard == [event]

    assert in_child(check) == "good"
    assert heard == []
