"""Replays in threads come to what they come to one after another."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton.runtime.jit import JITCallable

from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.replay import Replay, Stale
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census

X = torch.empty(1024)
THREADS = 4


@pytest.fixture
def slow_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While the first thread beside the main one parses, garbage is collected, slowly; meanwhile the others parse."""
    parse, first, within = JITCallable.parse, threading.Lock(), threading.Event()
    whose: list[int] = []

    def parsed(kernel: Any) -> Any:
        if threading.current_thread() is threading.main_thread() or not first.acquire(blocking=False):
            tree = parse(kernel)
            while within.is_set():
                tree = parse(kernel)
            return tree
        whose.append(threading.get_ident())
        within.set()
        try:
            return parse(kernel)
        finally:
            within.clear()

    def collected(*_: object) -> None:
        """As a finaliser that waits for something."""
        if within.is_set() and threading.get_ident() in whose:
            time.sleep(0.01)

    monkeypatch.setattr(JITCallable, "parse", parsed)
    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(20, 1000, 1000)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(collected)
    assert whose


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By hash, how often Triton says that it compiled."""
    found: Counter[str] = Counter()

    def listener(*, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            found[metadata["hash"]] += 1

    monkeypatch.setattr(knobs.compilation, "listener", listener)
    return found


def tuned_kernel() -> Any:
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]
    return triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))


def forgotten(kernel: Any, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Census, Path]:
    """What was recorded; and Triton's cache folder, empty as its memory is."""
    census = Census.parse(runtime.census().text())
    jit_function(kernel).device_caches.clear()
    getattr(kernel, "cache", {}).clear()
    folder = tmp_path / "empty"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return census, folder


def test_a_binary_that_is_an_entry_and_others_configuration_is_compiled_once(
    instrumented: Runtime, compiles: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = tuned_kernel()
    tuner[(1,)](X, X, X, 64)  # four trials: an entry each, and each one's configurations are the others
    tuner[(1,)](X[1:], X, X, 64)
    census, folder = forgotten(tuner, instrumented, tmp_path, monkeypatch)
    compiles.clear()
    result = instrumented.prewarm(census, threads=THREADS, expand=True)
    assert (result.replayed, result.configurations, result.skipped) == (5, 3, [])
    assert cubins_in(folder) == len(compiles) == 8
    assert set(compiles.values()) == {1}


def test_an_entry_that_several_configurations_come_to_is_compiled_once(
    instrumented: Runtime, compiles: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuner's candidates that differ in nothing that is compiled are one entry, which each of them asks for."""
    kernel = fresh(kernels.add_kernel)
    kernel[(1,)](X, X, X, 64, BLOCK=128)
    census, folder = forgotten(kernel, instrumented, tmp_path, monkeypatch)
    (entry,) = census.entries.values()
    compiles.clear()
    replay = Replay(instrumented.adapter, census)
    replay.prepare(entry)
    together = threading.Barrier(THREADS)

    def ask(_: int) -> bool:
        together.wait()
        return replay.replay(entry)

    with ThreadPoolExecutor(THREADS) as pool:
        assert any(pool.map(ask, range(THREADS)))
    assert cubins_in(folder) == 1
    assert compiles == {entry.hash: 1}


def test_a_collection_in_one_threads_parser_is_nothing_to_the_others(
    instrumented: Runtime, slow_collections: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to Python 3.11.7 parsers of several threads share a figure, and raise SystemError."""
    kernel = fresh(kernels.add_kernel)
    for x, n in ((X, 64), (X[1:], 64), (X[1:], 63), (X, 1)):
        kernel[(1,)](x, X, X, n, BLOCK=128)
    census, folder = forgotten(kernel, instrumented, tmp_path, monkeypatch)
    parse = JITCallable.parse
    result = instrumented.prewarm(census, threads=THREADS)
    assert (result.replayed, result.skipped, cubins_in(folder)) == (4, [], 4)
    assert JITCallable.parse is parse  # again


def test_of_two_prewarms_at_once_the_first_to_end_leaves_the_other_its_turns(instrumented: Runtime) -> None:
    parse, parsing = JITCallable.parse, instrumented.adapter.parsing
    with parsing.in_turn():
        with parsing.in_turn():
            inside = JITCallable.parse
        assert JITCallable.parse is inside is not parse
    assert JITCallable.parse is parse


def test_a_child_parses_though_another_thread_did_as_it_was_forked(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = fresh(kernels.add_kernel)
    within, over = threading.Event(), threading.Event()
    parse, parent = JITCallable.parse, os.getpid()

    def slow(kernel: Any) -> Any:
        within.set()
        if os.getpid() == parent:
            over.wait()
        return parse(kernel)

    monkeypatch.setattr(JITCallable, "parse", slow)
    with instrumented.adapter.parsing.in_turn():
        other = threading.Thread(target=kernel.parse)
        other.start()
        within.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            tree = None
            try:
                tree = kernel.parse()
            finally:
                os._exit(tree is None)
        over.set()
        other.join()
    assert os.waitpid(child, 0)[1] == 0


def test_an_index_that_is_made_anew_is_whole_for_threads_that_look_into_it(
    instrumented: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a module is imported for one entry while others are replayed."""
    kernel = fresh(kernels.add_kernel)
    kernel[(1,)](X, X, X, 64, BLOCK=128)
    census, _ = forgotten(kernel, instrumented, tmp_path, monkeypatch)
    (entry,) = census.entries.values()
    replay = Replay(instrumented.adapter, census)
    known = replay.kernels(entry)
    living = instrumented.adapter.registry.kernels
    found: list[list[Any]] = []

    def meanwhile() -> list[Any]:
        monkeypatch.setattr(instrumented.adapter.registry, "kernels", living)  # once
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(replay.kernels, entry).result())
        return living()

    monkeypatch.setattr(instrumented.adapter.registry, "kernels", meanwhile)
    with pytest.raises(Stale):
        replay.kernels(replace(entry, kernel=f"{entry.module}.another_kernel"))
    assert found == [known]
    assert replay.kernels(entry) == known
