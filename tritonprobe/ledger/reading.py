"""Reading one ledger file of another process, or of this one. Knows the files; adds nothing up.

A file is read with `pread`, never mapped: whoever cuts it short meanwhile makes a report, not a SIGBUS. Slots and the
buffer they are copied to are aligned alike, so that a number is never seen half written.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tritonprobe.ledger.layout import (
    BASE_NAME,
    BY_ID,
    EXEMPLAR_SLOTS,
    PAGE,
    SUFFIX,
    Base,
    FormatError,
    Header,
    Record,
    base_generation,
    exemplar_slots,
    unpack_base,
    unpack_exemplar,
    unpack_header,
    unpack_records,
)
from tritonprobe.ledger.schema import Metric
from tritonprobe.ledger.store import Labels, Traced

EMPTY_BASE = Base(b"", (), ())


@dataclass(frozen=True, slots=True)
class Series:
    metric: Metric
    labels: Labels
    first: int
    end: int

    def traced(self, slots: array[float]) -> Traced | None:
        """The exemplar that stands before this histogram's numbers, unless it was just being written."""
        at = self.first - EXEMPLAR_SLOTS
        if not slots[at + 1]:  # its time: none was ever written
            return None
        return unpack_exemplar(slots[at : self.first].tobytes())


class LedgerFile:
    """One file as far as it has been read. Its index only grows, so each record is unpacked once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.series: list[Series] = []
        self.unknown = 0
        """Series of metrics that this version does not have."""
        self.damage: str | None = None
        """Why the index could not be read to its end."""
        self._records = 0
        self._index_end = 0
        self._top = 0

    def snapshot(self, handle: int) -> array[float]:
        """What the slots hold now, after a look for new series. Raises FormatError and OSError."""
        header, count = unpack_header(os.pread(handle, PAGE, 0))
        plan = header.plan
        if header.uuid.hex() != self.path.name.removesuffix(SUFFIX):
            raise FormatError("foreign: its name is not the one it was given, so it may be a copy")
        if os.fstat(handle).st_size < plan.size:
            raise FormatError(f"cut short: it has {os.fstat(handle).st_size} bytes of {plan.size}")
        if self.header is None:
            self.header, self._index_end = header, plan.index_at
        if count > self._records:
            self._read_index(handle, count - self._records)
        slots = array("d", bytes(8 * self._top))
        if os.preadv(handle, [slots], PAGE) < 8 * self._top:
            raise FormatError("cut short while it was read")
        return slots

    def _read_index(self, handle: int, count: int) -> None:
        assert self.header is not None
        rest = self.header.plan.size - self._index_end
        for length in (128 * count, rest):  # most label values are short; else all there is
            data = os.pread(handle, min(length, rest), self._index_end)
            records, used, self.damage = unpack_records(data, count)
            if self.damage is None:
                break
        self._index_end += used
        self._records += len(records)
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        assert self.header is not None
        metric = BY_ID.get(record.schema_id)
        end = record.first + record.slots
        if metric is None:
            self.unknown += 1
        elif (
            (record.slots, len(record.labels)) != (metric.slots, len(metric.labels))
            or record.first < exemplar_slots(metric)
            or end > self.header.plan.slots
        ):
            self.damage = f"damaged: a record of {metric.name} is not like that metric"
        else:
            self.series.append(Series(metric, record.labels, record.first, end))
            self._top = max(self._top, end)


def ledger_files(directory: Path) -> list[Path]:
    """The files of the directory that bear a ledger's name. Raises OSError."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file. Raises OSError (a symbolic link is one) and FormatError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FormatError("foreign: it is no regular file")
        yield handle
    finally:
        os.close(handle)


def generation(directory: Path) -> bytes:
    """Which base the directory has now; nothing if it has none. Raises OSError and FormatError."""
    try:
        with opened(directory / BASE_NAME) as handle:
            return base_generation(os.pread(handle, 64, 0))
    except FileNotFoundError:
        return EMPTY_BASE.generation


def read_base(directory: Path) -> Base:
    """The sums of the files folded so far. Raises OSError and FormatError."""
    try:
        with opened(directory / BASE_NAME) as handle:
            return unpack_base(os.pread(handle, os.fstat(handle).st_size, 0))
    except FileNotFoundError:
        return EMPTY_BASE
