"""For `test_tuning_child`: two autotuned kernels, and a clock that one of them does not survive."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
import triton

from tests.adapter import kernels
from tritonprobe.adapter import trials


def measure(call: Callable[[], Any], seconds: float) -> float:
    call()
    if "scale" in str(os.environ.get("TRIAL")):
        os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0


def _about_to(kernel: Any) -> None:
    os.environ["TRIAL"] = str(kernel)


CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128)]
add = triton.autotune(configs=CONFIGS, key=["n"])(kernels.add_kernel)
scale = triton.autotune(configs=CONFIGS, key=["n"], pre_hook=lambda *_, **__: None)(kernels.scale_kernel)
trials.on_device = measure
_arguments = trials._arguments


def arguments(replay: Any, tuned: Any, jit: Any) -> dict[str, Any]:
    _about_to(tuned.kernel)
    return _arguments(replay, tuned, jit)


trials._arguments = arguments

if __name__ == "__main__":
    x = torch.empty(64)
    add[(1,)](x, x, x, 64)
    scale[(1,)](x, 2.0, x, 64)
