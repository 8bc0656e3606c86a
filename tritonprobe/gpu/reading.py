"""Bytes of CUPTI's records as columns of numbers: in C (`reading.c`), or by numpy where that cannot be built. Pure.

Both ways find the same. C reads a record once, and lets other threads of the program go on meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tritonprobe import native
from tritonprobe.gpu.spans import Ints

Words: TypeAlias = "npt.NDArray[np.uint64]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"

SOURCE = Path(__file__).with_name("reading.c")
KIND = 10
"""CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL."""

# Which eight-byte word of a record holds what.
_WORDS = (0, 2, 3, 5, 6, 7, 11, 13, 18, 19)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


@functools.cache
def compiled() -> Any:
    """The module of C, or None."""
    return native.load(SOURCE)


@dataclass(frozen=True, slots=True)
class Read:
    """Records in the order in which they came; ``which`` numbers the rows of ``classes``, as they first appeared."""

    start: Ints
    end: Ints
    correlation: Ints
    which: Ints
    node: Words
    classes: Words  # name, grid, the graph's number (32 bits) before the device's, and how many records, each
    in_order: bool  # correlation ids never fall
    wrong: int  # the kind of the first record that is no kernel's, or -1


def read(chunks: Sequence[Bytes], stride: int) -> Read:
    """The records of buffers that hold whole ones, of `stride` bytes each: at least 160, a multiple of eight."""
    module = compiled()
    if module is None:
        return _read(chunks, stride)
    count = sum(len(chunk) // stride for chunk in chunks)
    # One block: glibc keeps as much as twice the largest it was given back, so that new pages need not be asked for.
    start, end, correlation, which, node = np.empty((5, count), np.int64)
    found, in_order, wrong = module.read(list(chunks), stride, start, end, correlation, which, node)
    classes = np.frombuffer(found, np.uint64).reshape(-1, 4)
    return Read(start, end, correlation, which, node.view(np.uint64), classes, in_order, wrong)


def _read(chunks: Sequence[Bytes], stride: int) -> Read:
    parts = [chunk.view(np.uint64).reshape(-1, stride // 8)[:, _WORDS] for chunk in chunks]
    table = np.concatenate(parts) if parts else np.empty((0, len(_WORDS)), np.uint64)
    kind, start, end, place, stream_x, yz, correlation, name, node, graph = np.ascontiguousarray(table.T)
    grid = (stream_x & ~_LOW) | (yz & _LOW) << np.uint64(16) | yz >> _HIGH
    recurring = np.stack((name, grid, (graph & ~_LOW) | (place & _LOW)), axis=1)
    classes, first, which, counts = np.unique(
        recurring, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    appeared = np.argsort(first)
    number = np.empty(len(appeared), np.int64)
    number[appeared] = np.arange(len(appeared))
    ids = (correlation >> _HIGH).view(np.int64)
    kinds = kind & _LOW
    wrong = kinds[kinds != KIND]
    return Read(
        start.view(np.int64), end.view(np.int64), ids, number[which.reshape(-1)], node,
        np.column_stack((classes, counts.astype(np.uint64)))[appeared],
        not np.any(ids[1:] < ids[:-1]), int(wrong[0]) if len(wrong) else -1,
    )  # fmt: skip
