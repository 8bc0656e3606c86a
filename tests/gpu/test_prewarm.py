"""A census replayed on the GPU: launchers and modules are there before the first launch, and tuners have a winner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tritonprobe
from tests.adapter.conftest import fresh
from tests.adapter.kernels import add_kernel
from tritonprobe import runtime as runtime_module
from tritonprobe.prewarming.run import Tuning
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.shapes.census import Census
from tritonprobe.testing import capture_cold_calls

pytestmark = pytest.mark.gpu


@pytest.fixture
def instrumented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    others = runtime_module.current().adapter
    others.uninstall()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "first"))
    made = Runtime(Settings())
    monkeypatch.setattr(runtime_module, "_current", made)
    tritonprobe.instrument()
    yield made
    tritonprobe.uninstrument()


def test_what_was_replayed_is_loaded_and_its_first_launch_is_hot(
    instrumented: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = fresh(add_kernel)
    x = torch.randn(1025, device="cuda")
    out = torch.zeros_like(x)

    def traffic() -> None:
        kernel[(8,)](x, x, out, 1024, BLOCK=128)
        kernel[(8,)](x[1:], x[1:], out, 1023, BLOCK=128)

    traffic()
    census = Census.parse(instrumented.census().text())
    kernel.device_caches.clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    result = tritonprobe.prewarm(census)
    assert (result.replayed, result.skipped, result.coverage) == (2, [], 1.0)
    out.zero_()
    with capture_cold_calls() as calls:
        traffic()
    torch.cuda.synchronize()
    assert calls == []
    assert torch.equal(out[:1023], 2 * x[1:1024])


def test_a_tuner_that_has_no_winner_here_chooses_a_good_one(
    instrumented: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One element a program against a thousand: nobody has to measure closely.
    configs = [triton.Config({"BLOCK": block}) for block in (1, 1024)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(add_kernel))
    n = 1 << 20
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK"]),)

    tuner[grid](x, x, out, n)
    text = instrumented.census().text().replace('"measured":true', '"measured":false')
    tuner.cache.clear()
    tuner.fn.device_caches.clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    result = instrumented.prewarm(Census.parse(text), tune=Tuning())
    assert (result.winners, result.skipped) == (1, [])
    with capture_cold_calls() as calls:
        tuner[grid](x, x, out, n)
    torch.cuda.synchronize()
    assert calls == []
    assert tuner.best_config.kwargs == {"BLOCK": 1024}
    assert torch.equal(out, x + x)


def test_every_size_of_one_class_of_arguments_is_tuned(
    instrumented: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (1, 1024)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(add_kernel))
    tensors = {n: (torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")) for n in (1 << 18, 1 << 19, 1 << 20)}

    def traffic() -> None:
        for n, (x, out) in tensors.items():
            tuner[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, x, out, n)

    traffic()
    census = Census.parse(instrumented.census().text().replace('"measured":true', '"measured":false'))
    assert {(max(grid), min(grid)) for t in census.tunings.values() for grid in [[g[0] for *_, g in t.trials]]} == {
        (n, n // 1024) for n in tensors
    }
    tuner.cache.clear()
    tuner.fn.device_caches.clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    result = instrumented.prewarm(census, tune=Tuning())
    assert (result.winners, result.skipped) == (3, [])
    with capture_cold_calls() as calls:
        traffic()
    torch.cuda.synchronize()
    assert calls == []
    assert [config.kwargs for config in tuner.cache.values()] == [{"BLOCK": 1024}] * 3
    assert all(torch.equal(out, x + x) for x, out in tensors.values())
