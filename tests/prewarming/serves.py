"""A program that calls `ready()`, and launches a kernel with the lengths of its arguments."""

from __future__ import annotations

import sys

import torch

import tritonprobe
from tests.adapter.kernels import add_kernel

tritonprobe.ready()
for n in map(int, sys.argv[1:]):
    x = torch.empty(n)
    add_kernel[(1,)](x, x, x, n, BLOCK=128)
