"""Rotary position embedding in the half-rotation layout: element i turns together with element i + head_dim / 2."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import is_index, one_dtype

MAX_HEAD_DIM = 512
MAX_TILE = 2_048


@probe
@triton.jit
def rope_kernel(
    x_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    heads,
    half,
    stride_x_token,
    stride_x_head,
    stride_x_dim,
    stride_position,
    stride_cos_position,
    stride_cos_dim,
    stride_sin_position,
    stride_sin_dim,
    stride_out_token,
    stride_out_head,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """BLOCK_HEADS heads of one token of ``[tokens, heads, 2 * half]``; `out` has a last dimension of stride 1.

    The angles depend on the token alone, so its cosines and sines are read once for all heads of the program.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS).to(tl.int64)
    dim = tl.arange(0, BLOCK_HALF)

    position = tl.load(positions_ptr + token * stride_position).to(tl.int64)
    in_half = dim < half
    cos = tl.load(cos_ptr + position * stride_cos_position + dim * stride_cos_dim, mask=in_half)[None, :]
    sin = tl.load(sin_ptr + position * stride_sin_position + dim * stride_sin_dim, mask=in_half)[None, :]

    mask = (head < heads)[:, None] & in_half[None, :]
    x_ptrs = x_ptr + token * stride_x_token + head[:, None] * stride_x_head + dim[None, :] * stride_x_dim
    low = tl.load(x_ptrs, mask=mask).to(tl.float32)
    high = tl.load(x_ptrs + half * stride_x_dim, mask=mask).to(tl.float32)

    out_ptrs = out_ptr + token * stride_out_token + head[:, None] * stride_out_head + dim[None, :]
    out_type = out_ptr.dtype.element_ty
    tl.store(out_ptrs, (low * cos - high * sin).to(out_type), mask=mask)
    tl.store(out_ptrs + half, (high * cos + low * sin).to(out_type), mask=mask)


def rope_tables(
    max_positions: int,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``(cos, sin)`` tables that `rope` reads, each ``[max_positions, head_dim / 2]`` in float32."""
    # Angles in float64: at position 100,000 float32 is off by a hundredth of a radian.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    positions = torch.arange(max_positions, dtype=torch.float64, device=device)
    angles = torch.outer(positions, theta**-exponents)
    return angles.cos().float(), angles.sin().float()


def rope_reference(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each pair ``(x[i], x[i + head_dim / 2])`` turned by its angle, in float32, cast back to the dtype of `x`."""
    index = positions.long()
    c, s = cos[index].float().unsqueeze(1), sin[index].float().unsqueeze(1)
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * c - high * s, high * c + low * s), dim=-1).to(x.dtype)


def rope_supports(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool | str:
    if not one_dtype(x) or not is_index(positions) or not cos.dtype == sin.dtype == torch.float32:
        return "unsupported_dtype"
    shape, table = x.shape, cos.shape
    if len(shape) != 3 or len(table) != 2:
        return "unsupported_shape"
    tokens, _, head_dim = shape
    fits = (
        head_dim % 2 == 0
        and head_dim <= MAX_HEAD_DIM
        and positions.shape == (tokens,)
        and sin.shape == table
        and table[1] == head_dim // 2
    )
    return fits or "unsupported_shape"


@op(
    fallback=rope_reference,
    supports=rope_supports,
    remember_supports=True,
    bucket=lambda x, *_, **__: {"tokens": pow2(x.shape[0]), "heads": x.shape[1], "dim": x.shape[2]},
)
def rope(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x [tokens, heads, head_dim]`` rotated to `positions`, which must lie within the tables; a new tensor."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    tokens, heads, head_dim = x.shape
    half = head_dim // 2
    block_half = triton.next_power_of_2(half)
    block_heads = min(triton.next_power_of_2(heads), max(1, MAX_TILE // block_half))
    rope_kernel[(tokens, triton.cdiv(heads, block_heads))](
        x,
        positions,
        cos,
        sin,
        out,
        heads,
        half,
        *x.stride(),
        positions.stride(0),
        *cos.stride(),
        *sin.stride(),
        out.stride(0),
        out.stride(1),
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
    )
    return out
