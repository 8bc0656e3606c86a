"""Two kernels to launch hot: one with 5 arguments, one with 16. What they compute takes a few microseconds.

The cost of a launch grows with its arguments; these two stand for a small kernel and a large one.
"""

# mypy: ignore-errors
# A kernel's parameters are pointers and sizes that Triton types at the call, spelt as in the literature.
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x + y``, elementwise."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def matmul_kernel(
    a,
    b,
    out,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``out [M, N] = a [M, K] @ b [K, N]``, one tile a program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    inside_rows, inside_columns = rows[:, None] < M, columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        at = start + depth
        left = a + rows[:, None] * stride_am + at[None, :] * stride_ak
        right = b + at[:, None] * stride_bk + columns[None, :] * stride_bn
        total = tl.dot(
            tl.load(left, mask=inside_rows & (at[None, :] < K), other=0.0),
            tl.load(right, mask=inside_columns & (at[:, None] < K), other=0.0),
            total,
            input_precision=PRECISION,
        )
    place = out + rows[:, None] * stride_om + columns[None, :] * stride_on
    tl.store(place, total.to(out.dtype.element_ty), mask=inside_rows & inside_columns)
