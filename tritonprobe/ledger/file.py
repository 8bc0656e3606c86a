"""A ledger in a file: other processes read it while this one computes, holds the interpreter lock, or is dead.

Cells are one-slot memoryviews of a mapped file of fixed size, so that ``cell[0] += 1`` is a store into the page cache:
nothing to flush, nothing lost to kill -9. The file is allocated in full before it is mapped (a hole on a full file
system would be SIGBUS at the first count). Where there can be no file, the cells lie in this process's memory, with one
warning and the reason kept: the program runs on.

The file's lock (flock) says that its process lives. The mapping holds it, too: a daemon that closes descriptors it
never opened keeps its ledger alive. A forked child lays a zeroed file of its own where its parent's was
(`region`), with the same series in the same places: every cell that anyone holds goes on, and counts for the child.

Exact under the interpreter lock only, as every ledger here.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import math
import os
import time
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

from tritonprobe.ledger import directory as places
from tritonprobe.ledger.derive import MemoryTier
from tritonprobe.ledger.fold import DEAD_FILES, fold
from tritonprobe.ledger.handle import Handle
from tritonprobe.ledger.layout import (
    COUNT_AT,
    PAGE,
    SIZE,
    SUFFIX,
    FormatError,
    Header,
    Plan,
    Record,
    exemplar_slots,
    pack_exemplar,
    pack_header,
    pack_record,
    schema_id,
)
from tritonprobe.ledger.memory import MemoryLedger
from tritonprobe.ledger.merge import DirectoryReader
from tritonprobe.ledger.region import Region
from tritonprobe.ledger.schema import ERRORS, METRICS, Metric
from tritonprobe.ledger.store import Labels, Readable, Slots, Traced

log = logging.getLogger("tritonprobe")

ROOM = 8
"""So many times smaller than a file is the room that must be left beside it: else the dead could not be folded."""
FOLD_SECONDS = 1.0
"""How long a start waits for another one that makes room where there is none."""


def open_ledger(named: str | None = None, budget: int = 10_000) -> FileLedger:
    """The ledger of this process, in the directory `named`, that of TRITONPROBE_DIR, or a fresh one. Never raises.

    A fresh directory goes into this process's environment, so that the programs it starts count there as well, and is
    removed at exit unless they still do.
    """
    size = Plan.within(budget).size
    try:
        directory = places.choose(named or os.environ.get(places.VARIABLE))
    except (places.DirectoryError, OSError) as error:
        return FileLedger(None, budget, size, reason=str(error))
    ledger = FileLedger(directory.path, budget, size)
    if directory.fresh:
        os.environ[places.VARIABLE] = str(directory.path)
        atexit.register(_leave, directory, os.getpid())
    return ledger


class FileLedger(MemoryLedger):
    """Keeps the series of one process in a file (``path``), or only in memory: then ``reason`` says why."""

    def __init__(
        self, directory: Path | None, budget: int = 10_000, size: int = SIZE, reason: str | None = None
    ) -> None:
        self.path: Path | None = None
        self.reason = reason
        self._directory = directory
        self._budget = budget
        self._plan = Plan(size)
        self._region = Region(size)
        self._count = self._region.view[COUNT_AT : COUNT_AT + 8].cast("Q")
        self._slots = self._region.view[PAGE : self._plan.index_at].cast("d")
        # Index records, the index's end, slots in use. One assignment: a child forked in the middle of a new series
        # finds all of it or none.
        self._end = (0, self._plan.index_at, 0)
        self._absent: dict[tuple[str, Labels], Slots] = {}  # series taken away, whose slots hold NaN
        self._exemplars: dict[tuple[str, Labels], memoryview[int]] = {}  # where a histogram's is written
        self._making = False
        self._late: list[tuple[Metric, Labels]] = []
        self._handle: Handle | None = None
        self._everyone: DirectoryReader | None = None
        self._attach()
        super().__init__(budget)
        _living.add(self)
        if self.reason is not None:
            self._say_why()

    def reading(self) -> Readable:
        """What an exporter in this process should show: all processes of the directory, or this one if it is alone."""
        if self.path is None or self._directory is None:
            return self
        if self._everyone is None:
            self._everyone = DirectoryReader(self._directory, self._budget)
        return self._everyone

    def after_fork(self) -> None:
        """In a forked child: the parent's file is the parent's again, and all numbers start at 0."""
        super().after_fork()
        self._memory_tier = MemoryTier()
        self._traced.clear()
        self._making = False
        for metric in METRICS:
            for labels, slots in list(self._series[metric.name].items()):
                if isinstance(slots, list):
                    slots[:] = [0.0] * len(slots)
                elif metric.kind in ("gauge", "info"):
                    super()._remove(metric, labels)
                    self._absent[metric.name, labels] = slots  # which is the parent's still: not a store yet
        told, self.reason = self.reason, None
        try:
            self._attach()
        except OSError as error:
            self.reason = f"a forked child could not leave its parent's ledger ({error.strerror})"
        if self._directory is None:
            self.reason = told
        elif self.reason is not None and told is None:
            self._say_why()

    def close(self) -> None:
        """Gives the file up: its lock goes, and counting goes on in memory, that of children forked later as well."""
        numbers = bytes(self._region.view)
        self._region.lift()
        self._region.view[:] = numbers
        if self._handle is not None:
            self._handle.close()
        self.path = self._directory = self._handle = None

    def _attach(self) -> None:
        """Lays a new file over the region, or memory where there can be none; then `reason` says why. Keeps the index.

        In a forked child its parent's file, and with it that file's lock, is held until then, so that a parent which
        ends at this very moment sees that its directory is in use.
        """
        index = bytes(self._region.view[self._plan.index_at : self._end[1]])
        parents, self._handle, self.path = self._handle, None, None
        if self._directory is not None:
            _reduce(self._directory)
            error = self._lay(self._directory, index)
            if error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT):  # it may be the dead who fill it
                _reduce(self._directory, above=0, wait=FOLD_SECONDS)
                error = self._lay(self._directory, index)
            if error is not None:
                size = f"{self._plan.size / (1 << 20):g} MiB"
                self.reason = f"{self._directory}: no ledger file of {size} can be made there ({error.strerror})"
        if self.path is None:
            self._region.lift()
            self._write_index(index)
            if self._handle is not None:
                self._handle.close()
        if parents is not None:
            parents.close()

    def _lay(self, directory: Path, index: bytes) -> OSError | None:
        """Lays a new file of `directory` over the region; returns why it could not."""
        header = Header(uuid.uuid4().bytes, os.getpid(), time.time_ns(), self._plan)
        path = directory / f"{header.uuid.hex()}{SUFFIX}"
        newborn = path.with_name(f".{path.name}.new")
        try:
            self._handle = Handle(_born(newborn, pack_header(header), self._plan.size))
            self._region.lay(self._handle.number)
            self._write_index(index)
            newborn.rename(path)  # only now: whoever reads it finds it whole, and its owner alive
        except OSError as error:
            with suppress(OSError):
                newborn.unlink()
            return error
        self.path = path
        return None

    def _write_index(self, index: bytes) -> None:
        count, end, _ = self._end
        self._region.view[self._plan.index_at : end] = index
        self._count[0] = count
        for slots in self._absent.values():
            slots[0] = math.nan

    def _say_why(self) -> None:
        self.add(ERRORS, ("ledger",))
        log.warning("tritonprobe: counting in this process's memory, which no other process sees: %s", self.reason)

    def _make(self, metric: Metric, labels: Labels, first: float) -> Slots:
        if self._making:
            # A finalizer or a signal's handler counts something while this thread writes a record: not now.
            self._late.append((metric, labels))
            return super()._make(metric, labels, first)
        self._making = True
        try:
            slots = self._write_down(metric, labels, first)
        finally:
            self._making = False
        while self._late:
            self._write_late(*self._late.pop())
        return slots

    def _write_late(self, metric: Metric, labels: Labels) -> None:
        counted = self._series[metric.name].get(labels)
        if isinstance(counted, list):
            slots = self._series[metric.name][labels] = self._make(metric, labels, 0.0)
            for i, number in enumerate(counted):
                slots[i] += number

    def _write_down(self, metric: Metric, labels: Labels, first: float) -> Slots:
        kept = self._absent.pop((metric.name, labels), None)
        if kept is not None:
            kept[0] = first
            return kept
        count, end, used = self._end
        first_slot = used + exemplar_slots(metric)
        after = first_slot + metric.slots
        record = pack_record(Record(schema_id(metric), first_slot, metric.slots, labels))
        if not self._fits(len(record), after - used, 1.0):
            return super()._make(metric, labels, first)  # not even `other` has a place; this process alone sees it
        slots = self._slots[first_slot:after]
        slots[0] = first
        self._region.view[end : end + len(record)] = record
        self._count[0] = count + 1
        self._end = (count + 1, end + len(record), after)
        if first_slot > used:  # only now: a child forked before may give these slots to another series
            self._exemplars[metric.name, labels] = self._region.view[PAGE + 8 * used : PAGE + 8 * first_slot]
        return slots

    def _show(self, metric: Metric, labels: Labels, traced: Traced) -> None:
        super()._show(metric, labels, traced)
        place = self._exemplars.get((metric.name, labels))
        if place is not None:
            place[:] = pack_exemplar(traced)

    def _remove(self, metric: Metric, labels: Labels) -> Slots | None:
        slots = super()._remove(metric, labels)
        if slots is not None:
            slots[0] = math.nan
            self._absent[metric.name, labels] = slots
        return slots

    def _is_full(self, metric: Metric, labels: Labels) -> bool:
        if super()._is_full(metric, labels):
            return True
        if (metric.name, labels) in self._absent:
            return False
        # The last eighth is for what must always exist: `other`, and what the schema creates from the start.
        slots = exemplar_slots(metric) + metric.slots
        return not self._fits(len(pack_record(Record(0, 0, metric.slots, labels))), slots, 7 / 8)

    def _fits(self, record: int, slots: int, share: float) -> bool:
        _, end, used = self._end
        room = (self._plan.size - self._plan.index_at) * share
        return end - self._plan.index_at + record <= room and used + slots <= self._plan.slots * share


def _reduce(directory: Path, above: int = DEAD_FILES, wait: float = 0.0) -> None:
    try:
        fold(directory, above, wait)
    except (OSError, FormatError):
        log.debug("tritonprobe: %s: dead ledger files could not be folded", directory, exc_info=True)


def _born(path: Path, header: bytes, size: int) -> int:
    """Makes a file: locked, and whole, as a hole could later find the disk full. Returns its descriptor."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(handle, 0, size)
        left = os.fstatvfs(handle)
        if left.f_blocks > 0 and left.f_bavail * left.f_frsize < size // ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(handle, header, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


_living: weakref.WeakSet[FileLedger] = weakref.WeakSet()


def _leave(directory: places.Directory, maker: int) -> None:
    if os.getpid() == maker:  # a forked child runs its parent's exit handlers, too
        for ledger in list(_living):
            ledger.close()
        places.leave(directory)
