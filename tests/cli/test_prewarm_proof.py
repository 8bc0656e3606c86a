"""``bench prewarm`` on the compile-only device: everything but the times of kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_prewarmed_kernel_is_hot_and_its_figures_are_in_the_document(tmp_path: Path) -> None:
    out = tmp_path / "prewarm.json"
    command = [sys.executable, "-m", "tritonprobe", "bench", "prewarm", "--device", "compile-only:cuda:90"]
    done = subprocess.run([*command, "-o", out], capture_output=True, text=True, check=False, env={**os.environ})
    found = json.loads(out.read_text())
    assert done.returncode == (0 if found["good"] else 1), done.stderr
    assert (found["cold_calls_after"], found["binaries"], found["winner_in_best"]) == (0, 24, None)
    assert found["configuration_seconds"] == {}
    assert found["winner"] == found["serial_winner"]
    assert found["good"] == (found["share"] <= found["bound"]["share"])
    assert found["share"] == found["prewarm_seconds"] / found["serial_seconds"]
    assert "nothing was measured" in done.stdout
