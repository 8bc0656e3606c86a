"""Run as a process of its own: its first kernel, timed by the caller. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch  # after the path is set

import tritonprobe
from tests.adapter.kernels import add_kernel
from tritonprobe.testing import capture_cold_calls, compile_only

tritonprobe.instrument()
x = torch.empty(64)
with compile_only("cuda:90"), capture_cold_calls() as calls:
    start = time.monotonic_ns()
    add_kernel[(1,)](x, x, x, 64, BLOCK=128)
    wall = time.monotonic_ns() - start
(call,) = calls
sys.stdout.write(json.dumps({"wall": wall, "tier": call.tier, "phases": dict(call.phases)}) + "\n")
