"""SwiGLU, ``silu(gate) * up``: from two tensors, or from the one that a fused projection leaves."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import as_rows, one_dtype

MAX_BLOCK = 1_024


@probe
@triton.jit
def swiglu_kernel(
    gate_ptr,
    up_ptr,
    out_ptr,
    d,
    stride_gate_row,
    stride_gate_col,
    stride_up_row,
    stride_up_col,
    stride_out_row,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one row of ``[rows, d]``; `out` has columns of stride 1."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < d
    gate = tl.load(gate_ptr + row * stride_gate_row + cols * stride_gate_col, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + row * stride_up_row + cols * stride_up_col, mask=mask).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * stride_out_row + cols, out.to(out_ptr.dtype.element_ty), mask=mask)


def _halves(gate: torch.Tensor, up: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up as two tensors: views into the fused one if that is what came."""
    if up is not None:
        return gate, up
    d = gate.shape[-1] // 2
    return gate[..., :d], gate[..., d:]


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up`` in float32, cast back to the dtype of `gate`."""
    left, right = _halves(gate, up)
    return (torch.nn.functional.silu(left.float()) * right.float()).to(gate.dtype)


def swiglu_supports(gate: torch.Tensor, up: torch.Tensor | None = None) -> bool | str:
    if not one_dtype(gate, gate if up is None else up):
        return "unsupported_dtype"
    shape = gate.shape
    fits = len(shape) >= 1 and (shape[-1] % 2 == 0 if up is None else shape == up.shape)
    return fits or "unsupported_shape"


def _bucket(gate: torch.Tensor, up: torch.Tensor | None = None) -> dict[str, int]:
    d = gate.shape[-1] // 2 if up is None else gate.shape[-1]
    return {"rows": pow2(gate.shape[:-1].numel()), "d": d}


@op(fallback=swiglu_reference, supports=swiglu_supports, remember_supports=True, bucket=_bucket)
def swiglu(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up``; without `up`, the last dimension of `gate` holds both, gate first. Any strides."""
    gate, up = _halves(gate, up)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel() == 0:
        return out
    gate_rows, up_rows, out_rows = as_rows(gate), as_rows(up), as_rows(out)
    n_rows, d = gate_rows.shape
    block = min(triton.next_power_of_2(d), MAX_BLOCK)
    # Rows go first: the second grid axis ends at 65,535.
    swiglu_kernel[(n_rows, triton.cdiv(d, block))](
        gate_rows,
        up_rows,
        out_rows,
        d,
        gate_rows.stride(0),
        gate_rows.stride(1),
        up_rows.stride(0),
        up_rows.stride(1),
        out_rows.stride(0),
        BLOCK=block,
    )
    return out
