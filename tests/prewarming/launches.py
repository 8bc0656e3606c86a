"""A program that knows nothing of tritonprobe: launches a kernel with the lengths of its arguments."""

from __future__ import annotations

import sys

import torch

from tests.adapter.kernels import add_kernel

for n in map(int, sys.argv[1:]):
    x = torch.empty(n)
    add_kernel[(1,)](x, x, x, n, BLOCK=128)
