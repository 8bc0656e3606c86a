"""CUPTI's kernel records as columns of numbers. Pure: bytes in, numpy arrays out.

The fields lie at the same offsets in CUpti_ActivityKernel9 (CUDA 12, 208 bytes) and CUpti_ActivityKernel10 (CUDA 13.0,
216 bytes), as CUPTI's cupti_activity.h says; only the size differs, and it is learnt at run time. All of them lie in
eight-byte words, so that one gather fetches what is needed of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"
Words: TypeAlias = "npt.NDArray[np.uint64]"

KIND = 10
"""CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL."""
STRIDES = (208, 216)
"""The sizes of records that were tried. Others are accepted if the self-test's records can be read with them."""
SAME_RATE = 0.002
"""How far the rates of two clocks of nanoseconds may seem to differ, when they are read within milliseconds."""
SMALLEST = 160
"""Bytes up to the end of the last field that is read."""

# Which word holds what: (byte offset, what).
_WORDS = (0, 2, 3, 5, 6, 7, 11, 13, 18, 19)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


class RecordError(ValueError):
    """Bytes that are no kernel records of this size; the message says what they are instead."""


@dataclass(frozen=True, slots=True)
class Records:
    """Kernel records in launch order, one array a field. Times are those of CUPTI's clock, until `on_clock`.

    ``graph`` and ``node`` are 0 for a kernel that was launched by itself; ``name`` is an address.
    """

    start: Ints
    end: Ints
    correlation: Ints
    name: Words
    grid: Words
    stream: Ints
    device: Ints
    graph: Ints
    node: Words

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Records:
        return Records(
            self.start[chosen],
            self.end[chosen],
            self.correlation[chosen],
            self.name[chosen],
            self.grid[chosen],
            self.stream[chosen],
            self.device[chosen],
            self.graph[chosen],
            self.node[chosen],
        )

    def on_clock(self, first: tuple[int, int], last: tuple[int, int]) -> Records:
        """With the times of another clock, which two readings of both, (CUPTI's, the other's), lead to.

        Where both count the same nanoseconds, as good as, durations stay what they were. Raises RecordError if time
        did not go on between the readings.
        """
        theirs, ours = last[0] - first[0], last[1] - first[1]
        if theirs <= 0 or ours <= 0:
            raise RecordError(f"between two readings CUPTI's clock went on by {theirs}, and ours by {ours} ns")
        rate = ours / theirs
        return replace(self, start=_moved(self.start, first, rate), end=_moved(self.end, first, rate))


def _moved(times: Ints, first: tuple[int, int], rate: float) -> Ints:
    """On the other clock; 0, which is no time, stays 0."""
    since = times - first[0]
    if abs(rate - 1) > SAME_RATE:
        since = np.rint(since * rate).astype(np.int64)
    return np.where(times == 0, 0, since + first[1])


def grid_code(x: int, y: int, z: int) -> int:
    """A grid as one number. CUDA allows 2**31 - 1 blocks in x and 65,535 in y and z."""
    return x << 32 | y << 16 | z


def read(chunks: Sequence[npt.NDArray[np.uint8]], stride: int) -> Records:
    """The records of whole buffers, sorted by correlation. Raises RecordError."""
    if stride < SMALLEST or stride % 8:
        raise RecordError(f"kernel records of {stride} bytes: expected at least {SMALLEST}, a multiple of 8")
    parts: list[Words] = []
    for chunk in chunks:
        if len(chunk) % stride:
            raise RecordError(f"{len(chunk)} bytes are no whole number of {stride}-byte kernel records")
        words = chunk.view(np.uint64).reshape(-1, stride // 8)
        parts.append(words[:, _WORDS])
    table = np.concatenate(parts) if parts else np.empty((0, len(_WORDS)), np.uint64)
    kind, start, end, place, stream_x, yz, correlation, name, node, graph = np.ascontiguousarray(table.T)
    kinds = kind & _LOW
    if np.any(kinds != KIND):
        wrong = int(kinds[kinds != KIND][0])
        raise RecordError(f"a record of kind {wrong} among the kernels (kind {KIND}): another profiler asked for it")
    order = _in_order(correlation >> _HIGH)
    found = Records(
        start=start.view(np.int64),
        end=end.view(np.int64),
        correlation=(correlation >> _HIGH).view(np.int64),
        name=name,
        grid=(stream_x & ~_LOW) | (yz & _LOW) << np.uint64(16) | yz >> _HIGH,
        stream=(stream_x & _LOW).view(np.int64),
        device=(place & _LOW).view(np.int64),
        graph=(graph >> _HIGH).view(np.int64),
        node=node,
    )
    return found if order is None else found.take(order)


def _in_order(correlation: Words) -> npt.NDArray[np.intp] | None:
    """What sorts by correlation, of records that kept their order within one; None if they are sorted.

    The ids have 32 bits: past the last one they begin again.
    """
    if len(correlation) < 2 or not np.any(correlation[1:] < correlation[:-1]):
        return None
    if int(correlation.max()) - int(correlation.min()) > 1 << 31:
        correlation = correlation + np.where(correlation < 1 << 31, np.uint64(1 << 32), np.uint64(0))
    return np.argsort(correlation, kind="stable")


def busy_ns(records: Records, device: int) -> int:
    """How long at least one of a device's kernels ran."""
    chosen = records.device == device
    start, end = records.start[chosen], records.end[chosen]
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    fresh = np.maximum(start, np.concatenate((start[:1], reached[:-1])))
    return int(np.maximum(end - fresh, 0).sum())
