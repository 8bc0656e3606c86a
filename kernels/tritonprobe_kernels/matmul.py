"""Matrix product with an epilogue: ``activation(scale * (a @ b) + bias)``, autotuned."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import triton
import triton.language as tl

from tritonprobe import op, pow2, probe
from tritonprobe_kernels._common import DTYPES, one_dtype

Activation = Literal["none", "relu", "gelu", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


def _config(block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int) -> triton.Config:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    return triton.Config(blocks, num_warps=num_warps, num_stages=num_stages)


# Few, since every one is compiled and timed for every new key: a flat tile for decode batches, a square one that fits
# everywhere, and larger ones for prompts.
CONFIGS = [
    _config(16, 64, 64, num_warps=4, num_stages=4),
    _config(64, 64, 64, num_warps=4, num_stages=3),
    _config(128, 64, 32, num_warps=4, num_stages=3),
    _config(128, 128, 32, num_warps=8, num_stages=3),
    _config(128, 128, 64, num_warps=8, num_stages=3),
]


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation on a float32 tile; a constexpr, so that the unused branches are never compiled."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x


# The key leaves out M on purpose. N and K come from the model's weights and are few; M counts tokens and differs in
# almost every step, so that a key with M in it would tune without end.
@probe(bucket={"M": "pow2", "N": "exact", "K": "exact"})
@triton.autotune(configs=CONFIGS, key=["N", "K"])
@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    scale,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    stride_om,
    stride_on,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One ``[BLOCK_M, BLOCK_N]`` tile of ``out [M, N]`` from ``a [M, K]`` and ``b [K, N]``; `bias_ptr` may be None."""
    # Programs run in bands of GROUP_M tile rows, down a column of the band before the next column. Programs that run at
    # the same time then read the same few rows of a and columns of b, and find them in L2.
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_in_band = GROUP_M * tiles_n
    first_m = (pid // tiles_in_band) * GROUP_M
    band_rows = tl.minimum(tiles_m - first_m, GROUP_M)  # the last band may be lower
    pid_m = first_m + (pid % tiles_in_band) % band_rows
    pid_n = (pid % tiles_in_band) // band_rows

    # 64-bit, since row * stride passes 2^31 in a large weight.
    offs_m = pid_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m = offs_m < M
    mask_n = offs_n < N

    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        mask_k = offs_k < K - start
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        # For float32: three TF32 products instead of one keep float32's accuracy. Narrower dtypes ignore it.
        acc = tl.dot(a, b, acc, input_precision="tf32x3")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    acc = acc * scale
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n * stride_bias, mask=mask_n, other=0.0).to(tl.float32)[None, :]
    acc = activate(acc, ACTIVATION)
    out_ptrs = out_ptr + offs_m[:, None] * stride_om + offs_n[None, :] * stride_on
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])


def matmul_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: Activation = "none",
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(scale * (a @ b) + bias)`` in float32, cast to `out_dtype` (by default the dtype of `a`)."""
    _check(activation)
    out = torch.matmul(a.float(), b.float()) * scale
    if bias is not None:
        out = out + bias.float()
    if activation == "relu":
        out = torch.relu(out)
    elif activation == "gelu":
        out = torch.nn.functional.gelu(out)
    elif activation == "silu":
        out = torch.nn.functional.silu(out)
    return out.to(out_dtype or a.dtype)


def _check(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")


def matmul_supports(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **_: object,
) -> bool | str:
    if (
        not one_dtype(a, b)
        or (bias is not None and bias.dtype != a.dtype)
        or (out_dtype is not None and out_dtype not in DTYPES)
    ):
        return "unsupported_dtype"
    a_shape, b_shape = a.shape, b.shape
    fits = len(a_shape) == len(b_shape) == 2 and a_shape[1] == b_shape[0]
    fits = fits and (bias is None or bias.shape == (b_shape[1],))
    return fits or "unsupported_shape"


@op(
    fallback=matmul_reference,
    supports=matmul_supports,
    remember_supports=True,
    bucket=lambda a, b, **_: {"M": pow2(a.shape[0]), "N": b.shape[1], "K": b.shape[0]},
)
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: Activation = "none",
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``activation(scale * (a @ b) + bias)`` of ``a [M, K]``, ``b [K, N]`` and ``bias [N]``, each of any strides."""
    _check(activation)
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=out_dtype or a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
        a,
        b,
        bias,
        out,
        m,
        n,
        k,
        float(scale),  # an int would be another type, hence another variant
        *a.stride(),
        *b.stride(),
        0 if bias is None else bias.stride(0),
        *out.stride(),
        ACTIVATION=activation,
    )
    return out
