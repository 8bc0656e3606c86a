"""CUPTI's kernel records as columns of numbers. Pure: bytes in, numpy arrays out.

The fields lie at the same offsets in CUpti_ActivityKernel9 (CUDA 12, 208 bytes) and CUpti_ActivityKernel10 (CUDA 13.0,
216 bytes), as CUPTI's cupti_activity.h says; only the size differs, and it is learnt at run time. All of them lie in
eight-byte words. What recurs in them is kept once (`Classes`), so that what is done for each record is little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu import reading, spans
from tritonprobe.gpu.reading import KIND, Words
from tritonprobe.gpu.spans import Ints

STRIDES = (208, 216)
"""The sizes of records that were tried. Others are accepted if the self-test's records can be read with them."""
SAME_RATE = 0.002
"""How far the rates of two clocks of nanoseconds may seem to differ, when they are read within milliseconds."""
SMALLEST = 160
"""Bytes up to the end of the last field that is read."""

Chosen = slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]
"""Some elements of an array."""
ALL = slice(None)


class RecordError(ValueError):
    """Bytes that are no kernel records of this size; the message says what they are instead."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Records that differ in nothing but their times and their place are of one class. One array a field.

    ``name`` is an address; ``graph`` is 0 for a kernel that was launched by itself.
    """

    name: Words
    grid: Words
    graph: Ints
    device: Ints
    count: Ints  # records that were read of it

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class Records:
    """Kernel records in launch order, one array a field. Times are those of CUPTI's clock, until `move_to`.

    ``node`` is 0 for a kernel that was launched by itself; ``which`` is the place of its class.
    """

    start: Ints
    end: Ints
    correlation: Ints
    which: Ints
    node: Words
    classes: Classes

    def __len__(self) -> int:
        return len(self.start)

    @property
    def name(self) -> Words:
        return self.classes.name[self.which]

    @property
    def grid(self) -> Words:
        return self.classes.grid[self.which]

    @property
    def graph(self) -> Ints:
        return self.classes.graph[self.which]

    def take(self, chosen: Chosen) -> Records:
        return Records(
            self.start[chosen],
            self.end[chosen],
            self.correlation[chosen],
            self.which[chosen],
            self.node[chosen],
            self.classes,
        )

    def move_to(self, first: tuple[int, int], last: tuple[int, int]) -> None:
        """From now on with the times of another clock, which two readings of both, (CUPTI's, the other's), lead to.

        Where both count the same nanoseconds, as good as, durations stay what they were. Raises RecordError if time
        did not go on between the readings.
        """
        theirs, ours = last[0] - first[0], last[1] - first[1]
        if theirs <= 0 or ours <= 0:
            raise RecordError(f"between two readings CUPTI's clock went on by {theirs}, and ours by {ours} ns")
        rate = ours / theirs
        for times in (self.start, self.end):
            if abs(rate - 1) > SAME_RATE:
                known = times != 0  # 0 is no time, on any clock
                times[known] = np.rint((times[known] - first[0]) * rate).astype(np.int64) + first[1]
            else:
                spans.shift(times, first[1] - first[0])


def grid_code(x: int, y: int, z: int) -> int:
    """A grid as one number. CUDA allows 2**31 - 1 blocks in x and 65,535 in y and z."""
    return x << 32 | y << 16 | z


def read(chunks: Sequence[npt.NDArray[np.uint8]], stride: int) -> Records:
    """The records of whole buffers, sorted by correlation. Raises RecordError."""
    if stride < SMALLEST or stride % 8:
        raise RecordError(f"kernel records of {stride} bytes: expected at least {SMALLEST}, a multiple of 8")
    for chunk in chunks:
        if len(chunk) % stride:
            raise RecordError(f"{len(chunk)} bytes are no whole number of {stride}-byte kernel records")
    found = reading.read(chunks, stride)
    if found.wrong >= 0:
        raise RecordError(
            f"a record of kind {found.wrong} among the kernels (kind {KIND}): another profiler asked for it"
        )
    name, grid, place, count = found.classes.T
    graph, device = place >> np.uint64(32), place & np.uint64(0xFFFFFFFF)
    classes = Classes(name, grid, graph.view(np.int64), device.view(np.int64), count.astype(np.int64))
    records = Records(found.start, found.end, found.correlation, found.which, found.node, classes)
    return records if found.in_order else records.take(_order(found.correlation))


def _order(correlation: Ints) -> npt.NDArray[np.intp]:
    """What sorts by correlation, and keeps the order of records that have the same.

    The ids have 32 bits: past the last one they begin again.
    """
    if int(correlation.max()) - int(correlation.min()) > 1 << 31:
        correlation = correlation + np.where(correlation < 1 << 31, 1 << 32, 0)
    return np.argsort(correlation, kind="stable")


def busy_ns(records: Records, device: int) -> int:
    """How long at least one of a device's kernels ran."""
    its = records.classes.device == device
    chosen: Chosen = ALL if its.all() else its[records.which]
    return spans.busy(records.start[chosen], records.end[chosen])
