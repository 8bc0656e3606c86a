"""Vector addition: the smallest complete example of a kernel, its reference and its op."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import one_dtype

BLOCK = 1_024


@probe
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, stride_x, stride_y, BLOCK: tl.constexpr):
    """``out[i] = x[i] + y[i]`` for i < n; `out` is contiguous, `x` and `y` have a stride each."""
    # 64-bit offsets: more than 2^31 elements fit on a GPU, and i * stride overflows sooner still.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n  # the last block hangs over the end
    x = tl.load(x_ptr + offsets * stride_x, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets * stride_y, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, (x + y).to(out_ptr.dtype.element_ty), mask=mask)


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y`` as torch does it, in float32 for the narrower dtypes."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    if not dtype.is_floating_point or dtype == torch.float64:
        return x + y
    return (x.float() + y.float()).to(dtype)


def add_supports(x: torch.Tensor, y: torch.Tensor) -> bool | str:
    if not one_dtype(x, y):
        return "unsupported_dtype"
    return x.shape == y.shape or "unsupported_shape"  # the kernel does not broadcast


@op(fallback=add_reference, supports=add_supports, remember_supports=True, bucket=lambda x, _: {"n": pow2(x.numel())})
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y`` for two tensors of one shape and dtype, of any strides."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.numel()
    if n == 0:
        return out
    # A view with one stride where there is one (`x[::2]`), else a copy.
    x, y = x.reshape(-1), y.reshape(-1)
    add_kernel[(triton.cdiv(n, BLOCK),)](x, y, out, n, x.stride(0), y.stride(0), BLOCK=BLOCK)
    return out
