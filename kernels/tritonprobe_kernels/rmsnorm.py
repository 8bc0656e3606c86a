"""Root-mean-square normalisation over the last dimension: one program a row, the whole row in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import MAX_COLUMNS, as_rows, one_dtype, row_warps


@probe
@triton.jit
def rmsnorm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    n_cols,
    eps,
    stride_x_row,
    stride_x_col,
    stride_weight,
    stride_out_row,
    BLOCK: tl.constexpr,
):
    """One row of ``[rows, n_cols]``; BLOCK is n_cols or the next power of two; the columns of `out` have stride 1."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    # Zeros past the tail add nothing to the sum of squares, which is divided by the true length.
    x_ptrs = x_ptr + row * stride_x_row + cols.to(tl.int64) * stride_x_col
    x = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols.to(tl.int64) * stride_weight, mask=mask, other=0.0).to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    out = x * inverse_rms * weight
    tl.store(out_ptr + row * stride_out_row + cols, out.to(out_ptr.dtype.element_ty), mask=mask)


def rmsnorm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` in float32, cast back to the dtype of `x`."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype)


def rmsnorm_supports(x: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> bool | str:
    if not one_dtype(x, weight):
        return "unsupported_dtype"
    shape = x.shape
    fits = len(shape) >= 1 and weight.shape == (shape[-1],) and shape[-1] <= MAX_COLUMNS
    return fits or "unsupported_shape"


@op(
    fallback=rmsnorm_reference,
    supports=rmsnorm_supports,
    remember_supports=True,
    bucket=lambda x, *_, **__: {"rows": pow2(x.shape[:-1].numel()), "n": x.shape[-1]},
)
def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Root-mean-square normalisation of the last dimension of `x`, of any strides, times `weight`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows, out_rows = as_rows(x), as_rows(out)
    n_rows, n_cols = rows.shape
    block = triton.next_power_of_2(n_cols)
    rmsnorm_kernel[(n_rows,)](
        rows,
        weight,
        out_rows,
        n_cols,
        float(eps),  # an int would be another type, hence another variant
        rows.stride(0),
        rows.stride(1),
        weight.stride(0),
        out_rows.stride(0),
        BLOCK=block,
        num_warps=row_warps(block),
    )
    return out
