"""Attention of one new token per sequence over a cache of keys and values, with grouped query heads.

The cache is ``[slots, max_len, kv_heads, head_dim]``: a slot belongs to one running sequence, and a token's keys lie in
it exactly as a projection leaves them, ``[kv_heads, head_dim]``, so that writing them is one indexed assignment.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import LOG2_E, MAX_GRID, is_head_dim, is_index, one_dtype

MIN_DOT_ROWS = 16


@probe
@triton.jit
def attention_decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    slots_ptr,
    lengths_ptr,
    scale_log2,
    stride_q_seq,
    stride_q_head,
    stride_q_dim,
    stride_k_slot,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_slot,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_out_seq,
    stride_out_head,
    stride_slots,
    stride_lengths,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """All GROUP query heads of one key head of one sequence; the grid is (sequences, kv_heads).

    The heads of a group read the same keys, so they are the rows of one product and the cache is read once. BLOCK_G is
    GROUP rounded up to what a product needs; the rows beyond are zeros. `scale_log2` is the scale times log2(e).
    """
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots_ptr + sequence * stride_slots).to(tl.int64)
    length = tl.load(lengths_ptr + sequence * stride_lengths).to(tl.int32)

    dims = tl.arange(0, HEAD_DIM)
    member = tl.arange(0, BLOCK_G)
    member_mask = member < GROUP
    heads = kv_head * GROUP + member

    q_ptrs = q_ptr + sequence * stride_q_seq + heads[:, None] * stride_q_head + dims[None, :] * stride_q_dim
    q = tl.load(q_ptrs, mask=member_mask[:, None], other=0.0)
    # 64-bit from here on: a cache is the largest tensor of a server, often above 2^31 elements.
    k_ptr += slot * stride_k_slot + kv_head.to(tl.int64) * stride_k_head
    v_ptr += slot * stride_v_slot + kv_head.to(tl.int64) * stride_v_head

    row_max = tl.full((BLOCK_G,), -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_G,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_G, HEAD_DIM), dtype=tl.float32)

    for start in range(0, length, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        token_mask = tokens < length
        rows = tokens.to(tl.int64)

        # k is read transposed, [HEAD_DIM, BLOCK_N], as the product wants it.
        k_ptrs = k_ptr + rows[None, :] * stride_k_token + dims[:, None] * stride_k_dim
        k = tl.load(k_ptrs, mask=token_mask[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="tf32x3") * scale_log2
        scores = tl.where(token_mask[None, :], scores, -float("inf"))

        # Every block holds at least one token, so the maximum is finite.
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        correction = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores - new_max[:, None])
        row_sum = row_sum * correction + tl.sum(weights, axis=1)
        row_max = new_max

        v_ptrs = v_ptr + rows[:, None] * stride_v_token + dims[None, :] * stride_v_dim
        v = tl.load(v_ptrs, mask=token_mask[:, None], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * correction[:, None], input_precision="tf32x3")

    # A sequence of length 0 summed nothing: zeros come out, not 0 / 0.
    out = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_ptrs = out_ptr + sequence * stride_out_seq + heads[:, None] * stride_out_head + dims[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=member_mask[:, None])


def attention_decode_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention in float32, one sequence after another, cast back to the dtype of `q`.

    It reads `slots` and `lengths` on the host, so on a GPU the host waits here.
    """
    heads, head_dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    factor = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for sequence, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        if length == 0:
            continue
        grouped = q[sequence].float().view(kv_heads, heads // kv_heads, head_dim)
        k, v = (cache[slot, :length].float().transpose(0, 1) for cache in (k_cache, v_cache))
        weights = torch.softmax(grouped @ k.transpose(1, 2) * factor, dim=-1)
        out[sequence] = (weights @ v).view(heads, head_dim).to(q.dtype)
    return out


def attention_decode_supports(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    **_: object,
) -> bool | str:
    if not one_dtype(q, k_cache, v_cache) or not is_index(slots, lengths):
        return "unsupported_dtype"
    shape, cache = q.shape, k_cache.shape
    if len(shape) != 3 or len(cache) != 4 or v_cache.shape != cache:
        return "unsupported_shape"
    (batch, heads, head_dim), kv_heads = shape, cache[2]
    fits = (
        head_dim == cache[3]
        and 0 < kv_heads <= MAX_GRID
        and heads % kv_heads == 0
        and is_head_dim(head_dim)
        and slots.shape == lengths.shape == (batch,)
    )
    return fits or "unsupported_shape"


def _block_tokens(head_dim: int, itemsize: int) -> int:
    """Tokens a program reads at once: about 16 KiB of keys, and as much of values."""
    return max(16, min(128, 16_384 // (head_dim * itemsize)))


@op(
    fallback=attention_decode_reference,
    supports=attention_decode_supports,
    remember_supports=True,
    bucket=lambda q, k_cache, *_, **__: {
        "batch": pow2(q.shape[0]),
        "heads": q.shape[1],
        "kv_heads": k_cache.shape[2],
        "dim": q.shape[2],
    },
)
def attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of ``q [batch, heads, dim]`` over the first ``lengths[b]`` tokens that lie in slot ``slots[b]``.

    The caches are ``[slots, max_len, kv_heads, dim]`` and hold the newest token already. Gives ``[batch, heads, dim]``.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    batch, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    group = heads // kv_heads
    attention_decode_kernel[(batch, kv_heads)](
        q,
        k_cache,
        v_cache,
        out,
        slots,
        lengths,
        (head_dim**-0.5 if scale is None else float(scale)) * LOG2_E,
        *q.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        out.stride(0),
        out.stride(1),
        slots.stride(0),
        lengths.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_G=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        BLOCK_N=_block_tokens(head_dim, q.element_size()),
        num_warps=4,
        num_stages=2,
    )
    return out
