"""Softmax over the last dimension: one program a row, the whole row in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import MAX_COLUMNS, as_rows, one_dtype, row_warps


@probe
@triton.jit
def softmax_kernel(x_ptr, out_ptr, n_cols, stride_x_row, stride_x_col, stride_out_row, BLOCK: tl.constexpr):
    """One row of ``[rows, n_cols]``; BLOCK is n_cols or the next power of two; the columns of `out` have stride 1."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    # Past the tail stands -inf: it never is the maximum and adds exp(-inf) = 0 to the sum.
    x_ptrs = x_ptr + row * stride_x_row + cols.to(tl.int64) * stride_x_col
    x = tl.load(x_ptrs, mask=mask, other=-float("inf")).to(tl.float32)
    # The row's maximum comes off first, so that exp never overflows.
    numerator = tl.exp(x - tl.max(x, axis=0))
    out = numerator / tl.sum(numerator, axis=0)
    tl.store(out_ptr + row * stride_out_row + cols, out.to(out_ptr.dtype.element_ty), mask=mask)


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """``softmax(x)`` over the last dimension in float32, cast back to the dtype of `x`."""
    return torch.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


def softmax_supports(x: torch.Tensor) -> bool | str:
    if not one_dtype(x):
        return "unsupported_dtype"
    return (x.dim() >= 1 and x.shape[-1] <= MAX_COLUMNS) or "unsupported_shape"


@op(
    fallback=softmax_reference,
    supports=softmax_supports,
    remember_supports=True,
    bucket=lambda x: {"rows": pow2(x.shape[:-1].numel()), "n": pow2(x.shape[-1])},
)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of `x`, of any strides."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows, out_rows = as_rows(x), as_rows(out)
    n_rows, n_cols = rows.shape
    block = triton.next_power_of_2(n_cols)
    softmax_kernel[(n_rows,)](
        rows,
        out_rows,
        n_cols,
        rows.stride(0),
        rows.stride(1),
        out_rows.stride(0),
        BLOCK=block,
        num_warps=row_warps(block),
    )
    return out
