"""The compile-only device: who chooses it, and at the end of a process that never left its block."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritonprobe.adapter.device import parse_device
from tritonprobe.runtime import Runtime
from tritonprobe.settings import SettingError, Settings
from tritonprobe.testing import compile_only

PROGRAM = """
import torch, triton
import triton.language as tl
from tritonprobe.testing import compile_only
device = compile_only("cuda:90")
device.__enter__()

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1)

kernel[(1,)](torch.empty(16), BLOCK=16)
"""


def test_who_chose_a_device_in_code_means_it_whatever_the_setting_says() -> None:
    made = Runtime(Settings(device="compile-only:cuda:90"))
    with compile_only("cuda:80"):
        made.watch()
        try:
            assert made.device == "compile-only:cuda:80"
        finally:
            made.unwatch()
        assert made.device == "compile-only:cuda:80"


def test_an_interpreter_that_ends_inside_the_block_complains_of_nothing(tmp_path: Path) -> None:
    code = tmp_path / "program.py"
    code.write_text(PROGRAM)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Error" not in done.stderr  # Triton 3.9 has a warning of its own there


@pytest.mark.parametrize("device", ["cuda:90", "compile-only:cuda:99", "compile-only:cuda:", "compile-only:90"])
def test_a_device_that_cannot_be_used_is_named_with_its_setting(device: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse_device(device)
    assert str(refused.value).startswith(f"TRITONPROBE_DEVICE={device!r}: expected compile-only:cuda:90 ")
