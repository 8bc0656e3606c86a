"""A program that knows nothing of tritonprobe: launches a kernel ten times, and runs itself `argv[1]` levels deep."""

from __future__ import annotations

import subprocess
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


depth = int(sys.argv[1])
x = torch.empty(64)
for _ in range(10):
    add_one[(1,)](x, x, 64, BLOCK=64)
sys.stdout.write(f"level {depth} is done\n")
sys.stdout.flush()
if depth:
    sys.exit(subprocess.run([sys.executable, __file__, str(depth - 1)], check=False).returncode)
sys.exit(3)
