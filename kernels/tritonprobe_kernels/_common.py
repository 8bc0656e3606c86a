"""What the ops share: the dtypes they take, how a tensor is seen as rows, and how many warps a row gets.

Knows torch only. Every helper here looks at shapes, dtypes and strides, never at a tensor's contents. An op asks what
it supports in each call: `x.shape` is read once there, since each reading makes a new object; `x.size(0)` costs more.
"""

from __future__ import annotations

import torch

DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32))
INDEX_DTYPES = frozenset((torch.int32, torch.int64))

MAX_COLUMNS = 65_536
"""The longest row that a kernel keeps in registers as one block."""

MAX_GRID = 65_535
"""How long the second and third axis of a CUDA grid can be."""

LOG2_E = 1.4426950408889634
"""exp(x) = exp2(x * LOG2_E); exp2 is what the hardware has."""


def one_dtype(tensor: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether all of them share one dtype, and the kernels take it."""
    dtype = tensor.dtype
    if dtype not in DTYPES:
        return False
    for other in others:  # noqa: SIM110  # a generator takes as long as all the rest
        if other.dtype is not dtype:
            return False
    return True


def is_index(*tensors: torch.Tensor) -> bool:
    """Whether all of them hold indices that the kernels read: int32 or int64."""
    for tensor in tensors:  # noqa: SIM110
        if tensor.dtype not in INDEX_DTYPES:
            return False
    return True


def is_head_dim(n: int) -> bool:
    """Whether attention takes heads of `n` elements: a power of two that `tl.dot` takes as its inner length."""
    return 16 <= n <= 256 and n & (n - 1) == 0


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as ``[rows, columns]``, without a copy wherever strides allow it. `x` must not be empty."""
    return x.reshape(-1, x.shape[-1])


def row_warps(block: int) -> int:
    """Warps for a program that holds one row of `block` columns: about 16 to 64 elements a thread at the long end."""
    if block < 2_048:
        return 4
    return 8 if block < 8_192 else 16
