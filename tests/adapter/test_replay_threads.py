"""Replays in threads come to what they come to one after another."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton import knobs

from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.replay import Replay
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census

X = torch.empty(1024)
THREADS = 4


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
