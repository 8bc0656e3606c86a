"""Where a rewrite refuses, a plainer way counts the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe.adapter import binder, launches
from tritonprobe.adapter.rewrite import RewriteError
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls

X = torch.empty(64)
NAME = "tests.adapter.kernels.add_kernel"


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise RewriteError("an unknown Triton")


@pytest.fixture(params=["binder", "guard", "both"])
def plainer(request: pytest.FixtureRequest, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    if request.param in ("binder", "both"):
        monkeypatch.setattr(binder, "counting_binder", refuse)
    if request.param in ("guard", "both"):
        monkeypatch.setattr(launches, "guard", refuse)
    tritonprobe.instrument()
    return runtime


def test_launches_errors_warm_ups_and_cold_calls_are_the_same(plainer: Runtime, add: Any) -> None:
    with capture_cold_calls() as calls:
        for n in (64, 64, 3, 64):
            add(X, X, X, n)
        with pytest.raises(ZeroDivisionError):
            add.kernel[lambda meta: 1 // 0](X, X, X, 3, BLOCK=128)
        with pytest.raises(TypeError):
            add.kernel[(1,)](X)
        add.kernel.warmup(X, X, X, 64, BLOCK=64, grid=(1,))

    launched = samples_of(plainer, "launches_total")
    assert (launched[NAME, "n<=64"], launched[NAME, "n<=4"]) == (3, 2)
    assert sum(launched.values()) == 6
    assert samples_of(plainer, "launch_errors_total") == {(NAME, "ZeroDivisionError"): 1, (NAME, "TypeError"): 1}
    assert samples_of(plainer, "warmups_total") == {(NAME, "n<=64"): 1}
    assert [call.tier for call in calls] == ["compile"] * 3
    assert plainer.adapter.calls.current is None


def test_nothing_is_left_behind(plainer: Runtime) -> None:
    kernel = fresh(kernels.add_kernel)
    kernel[(1,)](X, X, X, 64, BLOCK=64)
    tritonprobe.uninstrument()
    kernel[(1,)](X, X, X, 64, BLOCK=64)

    assert kernel.pre_run_hooks == []
    assert total_of(plainer, "launches_total") == 1
