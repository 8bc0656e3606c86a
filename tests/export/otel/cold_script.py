"""A plain script: one kernel, launched cold and then hot, on a device that stands in for a GPU. Watches nothing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe.testing import compile_only


@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x + x, mask=at < n)


if __name__ == "__main__":
    values = torch.zeros(64)
    with compile_only("cuda:90"):
        for _ in range(5):
            double_kernel[(1,)](values, 64, BLOCK=64)
