"""What the ops share: the dtypes they take, how a tensor is seen as rows, and how many warps a row gets.

Knows torch only. Every helper here looks at shapes, dtypes and strides, never at a tensor's contents.
"""

from __future__ import annotations

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

MAX_COLUMNS = 65_536
"""The longest row that a kernel keeps in registers as one block."""

MAX_GRID = 65_535
"""How long the second and third axis of a CUDA grid can be."""

LOG2_E = 1.4426950408889634
"""exp(x) = exp2(x * LOG2_E); exp2 is what the hardware has."""


def one_dtype(*tensors: torch.Tensor) -> bool:
    """Whether all of them share one dtype, and the kernels take it."""
    return tensors[0].dtype in DTYPES and all(t.dtype == tensors[0].dtype for t in tensors)


def is_index(*tensors: torch.Tensor) -> bool:
    """Whether all of them hold indices that the kernels read: int32 or int64."""
    return all(t.dtype in (torch.int32, torch.int64) for t in tensors)


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
