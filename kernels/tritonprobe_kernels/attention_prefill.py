"""Causal attention over packed sequences of different lengths, with grouped query heads: what a prompt runs through.

The softmax is computed online (Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022): keys pass by in blocks,
and a running maximum and sum per query correct what was added before. No ``[tokens, tokens]`` matrix ever exists.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import LOG2_E, MAX_GRID, is_head_dim, is_index, one_dtype


@probe
@triton.jit
def attention_prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    cu_seqlens_ptr,
    scale_log2,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_out_token,
    stride_out_head,
    stride_cu_seqlens,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_M queries of one head of one sequence. The grid is (blocks of the longest sequence, heads, sequences).

    GROUP query heads share a key head. `scale_log2` is the scale times log2(e), since exp2 is what the hardware has.
    """
    block = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)

    cu_seqlens_ptr += sequence * stride_cu_seqlens
    first = tl.load(cu_seqlens_ptr).to(tl.int64)
    length = (tl.load(cu_seqlens_ptr + stride_cu_seqlens).to(tl.int64) - first).to(tl.int32)
    if block * BLOCK_M >= length:
        return  # the grid is as long as the longest sequence; this one ends before

    kv_head = head // GROUP
    dims = tl.arange(0, HEAD_DIM)
    queries = block * BLOCK_M + tl.arange(0, BLOCK_M)
    query_mask = queries < length

    # The start of the sequence is 64-bit, and so is each row's offset: tokens * stride can pass 2^31.
    rows = first + queries
    q_ptrs = q_ptr + rows[:, None] * stride_q_token + head * stride_q_head + dims[None, :] * stride_q_dim
    q = tl.load(q_ptrs, mask=query_mask[:, None], other=0.0)
    k_ptr += first * stride_k_token + kv_head * stride_k_head
    v_ptr += first * stride_v_token + kv_head * stride_v_head

    row_max = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)

    # Keys after the block's last query are in nobody's past.
    for start in range(0, tl.minimum(length, (block + 1) * BLOCK_M), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_mask = keys < length
        key_rows = keys.to(tl.int64)

        # k is read transposed, [HEAD_DIM, BLOCK_N], as the product wants it.
        k_ptrs = k_ptr + key_rows[None, :] * stride_k_token + dims[:, None] * stride_k_dim
        k = tl.load(k_ptrs, mask=key_mask[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="tf32x3") * scale_log2
        visible = key_mask[None, :] & (queries[:, None] >= keys[None, :])
        scores = tl.where(visible, scores, -float("inf"))

        # Key 0 is visible to every query, so the maximum is finite from the first block on and -inf never meets -inf.
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        correction = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores - new_max[:, None])
        row_sum = row_sum * correction + tl.sum(weights, axis=1)
        row_max = new_max

        v_ptrs = v_ptr + key_rows[:, None] * stride_v_token + dims[None, :] * stride_v_dim
        v = tl.load(v_ptrs, mask=key_mask[:, None], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * correction[:, None], input_precision="tf32x3")

    out = acc / row_sum[:, None]
    out_ptrs = out_ptr + rows[:, None] * stride_out_token + head * stride_out_head + dims[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=query_mask[:, None])


def attention_prefill_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,  # noqa: ARG001  # a fallback takes what its op takes; the grid is the kernel's affair
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention in float32, one sequence after another, cast back to the dtype of `q`.

    It reads `cu_seqlens` on the host, so on a GPU the host waits here.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group = q.shape[1] // k.shape[1]
    for start, end in pairwise(cu_seqlens.tolist()):
        # torch wants [1, heads, tokens, dim] and a key head for each query head; without the leading 1 it builds the
        # whole [tokens, tokens] matrix.
        queries, keys, values = (t[start:end].float().transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        keys, values = (t.repeat_interleave(group, dim=1) for t in (keys, values))
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        out[start:end] = attended[0].transpose(0, 1).to(q.dtype)
    return out


def attention_prefill_supports(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *_: object,
    **__: object,
) -> bool | str:
    if not one_dtype(q, k, v) or not is_index(cu_seqlens):
        return "unsupported_dtype"
    shape, keys, offsets = q.shape, k.shape, cu_seqlens.shape
    if len(shape) != 3 or len(keys) != 3 or v.shape != keys or len(offsets) != 1:
        return "unsupported_shape"
    (tokens, heads, head_dim), kv_heads = shape, keys[1]
    fits = (
        keys == (tokens, kv_heads, head_dim)
        and kv_heads > 0
        and heads % kv_heads == 0
        and is_head_dim(head_dim)
        and max(heads, offsets[0] - 1) <= MAX_GRID
    )
    return fits or "unsupported_shape"


def _blocks(head_dim: int, itemsize: int) -> tuple[int, int]:
    """Queries and keys a program holds at once: fewer where a row is wide, to stay within 99 KiB of shared memory."""
    row_bytes = head_dim * itemsize
    if row_bytes <= 256:
        return 64, 64
    return (32, 32) if row_bytes <= 512 else (16, 16)


@op(
    fallback=attention_prefill_reference,
    supports=attention_prefill_supports,
    remember_supports=True,
    bucket=lambda q, k, *_, **__: {
        "tokens": pow2(q.shape[0]),
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "dim": q.shape[2],
    },
)
def attention_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of ``q [tokens, heads, dim]`` over `k` and `v`, each ``[tokens, kv_heads, dim]``.

    Sequence s is the rows ``cu_seqlens[s]`` to ``cu_seqlens[s + 1]``; `max_seqlen` is the longest and sizes the grid.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sequences = cu_seqlens.shape[0] - 1
    if out.numel() == 0 or sequences < 1 or max_seqlen < 1:
        return out
    heads, head_dim = q.shape[1:]
    block_m, block_n = _blocks(head_dim, q.element_size())
    attention_prefill_kernel[(triton.cdiv(max_seqlen, block_m), heads, sequences)](
        q,
        k,
        v,
        out,
        cu_seqlens,
        (head_dim**-0.5 if scale is None else float(scale)) * LOG2_E,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        out.stride(0),
        out.stride(1),
        cu_seqlens.stride(0),
        GROUP=heads // k.shape[1],
        HEAD_DIM=head_dim,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=4,
        num_stages=2,
    )
    return out
