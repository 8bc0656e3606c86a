"""This process as one of an engine's: what it tells the others, and what it hears from them.

The processes that called `join` with one name, in one directory, share their stalls: a worker's are charged to the
requests that the server's process holds. Knows journals and the clock they share; who is charged is `live`'s business.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

from tritonprobe.requests.exposure import Interval
from tritonprobe.requests.journal import Kind, Peers, Record, Writer, ref, sweep
from tritonprobe.requests.request import LiveRequest


class Engine:
    """One process's part in an engine. Raises OSError where there can be no journal.

    Other threads may be about to use one that was just left: then it does nothing.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        number = ref(name)
        sweep(folder)
        self._writer = Writer(folder, number)
        self._peers = Peers(folder, number, self._writer.path)
        self.is_quiet = self._peers.are_quiet
        self._lock = threading.RLock()  # reentrant: a signal's handler may run inside
        self._left = False
        self._held: weakref.WeakValueDictionary[int, LiveRequest] = weakref.WeakValueDictionary()

    def holds(self, request: LiveRequest) -> None:
        """What the peers say of the request's id is about this one."""
        self._held[ref(request.id)] = request

    def stalled(self, start: int, end: int, step: object) -> None:
        """A serving thread of this process was in a cold call, in the step of that id."""
        self._write(Record(Kind.STALL, start, end, tag=tag_of(step)))

    def was_in(self, ids: Iterable[str], windows: Iterable[Interval]) -> None:
        """These requests, which another process holds, were in a step in which something stalled."""
        for start, end in windows:
            for name in ids:
                self._write(Record(Kind.STEP, start, end, ref=ref(name)))

    def executed(self, request: LiveRequest, first_step: int, executed: int, fallback: int) -> None:
        """All that this process knows of the life of a request that another one holds."""
        self._write(Record(Kind.EXECUTED, first_step, executed, fallback, ref=ref(request.id)))

    def show_open(self, oldest: tuple[int, object] | None) -> None:
        """The oldest cold call in progress of a serving thread, and the id of its step."""
        start, step = (None, None) if oldest is None else oldest
        with self._lock:
            if not self._left:
                self._writer.show_open(start, tag_of(step))

    def hear(self, stalled: Callable[[int, int, int], None]) -> None:
        """Takes in what the peers wrote: `stalled(start, end, tag)` for each stall, the rest into held requests."""
        with self._lock:
            for record in () if self._left else self._peers.news():
                if record.kind is Kind.STALL:
                    stalled(record.start, record.end, record.tag)
                    continue
                request = self._held.get(record.ref)
                if request is None:
                    continue
                if record.kind is Kind.STEP:
                    request._told.append((record.start, record.end))
                else:
                    request._elsewhere = (record.start, record.end, record.more)

    def open_stalls(self) -> list[tuple[int, int]]:
        """(start, tag) of the cold calls that peers are in."""
        with self._lock:
            return [] if self._left else self._peers.open_stalls()

    def lost(self) -> int:
        """Records of peers that were overwritten before this process read them."""
        return self._peers.lost

    def leave(self) -> None:
        with self._lock:
            self._left = True
            self._peers.close()
            self._writer.close()

    def after_fork(self) -> None:
        """For a forked child: lets go of its parent's journal, whose lock may be held by nobody."""
        self._lock = threading.RLock()
        self.leave()

    def _write(self, record: Record) -> None:
        with self._lock:
            if not self._left:
                self._writer.write(record)


def tag_of(step: object) -> int:
    """The number of a step's id; 0 where there is none."""
    return 0 if step is None else ref(step)
