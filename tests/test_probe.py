"""The public names: importing is light, settings are honoured, errors say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tritonprobe
from tritonprobe import runtime as runtime_module
from tritonprobe.runtime import Runtime
from tritonprobe.settings import SettingError, Settings

ROOT = Path(__file__).parents[1]


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def test_gpu_is_there_once_it_is_named() -> None:
    done = run(
        "import sys, tritonprobe\n"
        "assert 'tritonprobe.gpu' not in sys.modules\n"
        "print(tritonprobe.gpu.bench.__module__, hasattr(tritonprobe, 'gpus'))"
    )
    assert done.stdout.strip() == "tritonprobe.gpu.benchmark False", done.stderr


def test_importing_tritonprobe_imports_neither_triton_nor_torch() -> None:
    done = run(
        "import sys, tritonprobe; print([m for m in ('triton', 'torch', 'prometheus_client') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_is_there() -> None:
    for name in tritonprobe.__all__:
        assert getattr(tritonprobe, name) is not None


def test_disabled_means_untouched() -> None:
    code = """
import tritonprobe, triton.runtime.jit as jit
before = jit.JITFunction.run
from tests.adapter.kernels import add_kernel
tritonprobe.instrument()
assert tritonprobe.probe(add_kernel) is add_kernel
assert jit.JITFunction.run is before
"""
    done = run(code, TRITONPROBE_DISABLED="1")
    assert done.returncode == 0, done.stderr


def test_the_device_setting_needs_no_code() -> None:
    code = """
import torch, tritonprobe
from tritonprobe.runtime import current
from tests.adapter.kernels import add_kernel
tritonprobe.instrument()
x = torch.empty(64)
add_kernel[(1,)](x, x, x, 64, BLOCK=64)
print(current().device, len(current().cold_calls))
tritonprobe.uninstrument()
print(current().device)
"""
    done = run(code, TRITONPROBE_DEVICE="compile-only:cuda:80")
    assert done.stdout.splitlines() == ["compile-only:cuda:80 1", "none"], done.stderr


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            "compile-only:cuda:77",
            "TRITONPROBE_DEVICE='compile-only:cuda:77': expected compile-only:cuda:90 (cuda:80, cuda:100), or none",
        ),
        ("gpu", "TRITONPROBE_DEVICE='gpu': expected compile-only:cuda:90 (cuda:80, cuda:100), or none"),
    ],
)
def test_a_device_that_cannot_be_used_is_named(value: str, sentence: str) -> None:
    done = run("import tritonprobe; tritonprobe.instrument()", TRITONPROBE_DEVICE=value)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]


def test_configure_comes_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "_current", Runtime(Settings()))
    tritonprobe.configure(rank="3", port=0)
    assert runtime_module.current().settings.rank == "3"
    assert runtime_module.current().adapter is not None
    with pytest.raises(RuntimeError, match="before the first"):
        tritonprobe.configure(rank="4")


def test_an_unknown_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "_current", Runtime(Settings()))
    with pytest.raises(SettingError, match="unknown setting 'ranks'; the settings are"):
        tritonprobe.configure(ranks=3)


def test_metrics_are_served_for_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    import json
    import urllib.error
    import urllib.request

    monkeypatch.setattr(runtime_module, "_current", Runtime(Settings(port=0)))
    with tritonprobe.serve() as server:
        assert b"tritonprobe_cold_calls_after_ready_total" in urllib.request.urlopen(f"{server.url}/metrics").read()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{server.url}/ready")
        tritonprobe.ready()
        assert urllib.request.urlopen(f"{server.url}/ready").status == 200
        assert json.loads(urllib.request.urlopen(f"{server.url}/report").read())["cold_calls"] == 0


def test_a_users_registry_takes_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    monkeypatch.setattr(runtime_module, "_current", Runtime(Settings()))
    registry = CollectorRegistry()
    registry.register(tritonprobe.collector())
    assert b'tritonprobe_cold_calls_after_ready_total{tier="compile"} 0.0' in generate_latest(registry)
