"""What the processes of one engine tell each other: a small ring in a file each, which all the others read.

A process writes down the stalls of its serving threads, the steps that lay in a stall, and when it saw a request
executed; it reads what its peers wrote. All is in nanoseconds of ``time.monotonic_ns``, one clock for all processes of
a host; names travel as numbers (`ref`). The file's lock says that its writer lives. Knows files, and nothing of
requests.

A record is written in place and ends with a check over all of it, so that a reader takes a half-written one for none
yet. A ring that went round before it was read has lost records, and says how many.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import sys
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SUFFIX = ".stalls"
RECORDS = 4096
"""Records a process keeps for its peers."""
LOOK_NS = 10_000_000
"""Nanoseconds that a step may pass without a look for new peers."""
STALE = 600.0
"""Seconds after which the file of a process that is gone may go, too."""
DEAD = 16
"""Files of processes that are gone which stay until then, for who has not read them yet."""

_MAGIC = 0x7470_7374_616C_6C31  # "tpstall1"
_WORDS = 8  # of a record: kind, three numbers, ref, tag, -, check
_PAGE = 4096
_SIZE = _PAGE + RECORDS * _WORDS * 8
_COUNT, _OPEN, _OPEN_TAG = 1, 2, 3  # words of the header, after the magic number
_MASK = (1 << 63) - 1
_WORDS_AS_BYTES = struct.Struct(f"={_WORDS}q")


class Kind(IntEnum):
    STALL = 1
    """A finished cold call of a serving thread: `start`, `end`, and the step it happened in as `tag`."""
    STEP = 2
    """The request `ref` was in a step from `start` to `end`, in which something stalled."""
    EXECUTED = 3
    """The request `ref` is done: its first step began at `start`, and its steps outside stalls took `end`, of which
    `more` in fallbacks."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    start: int
    end: int
    more: int = 0
    ref: int = 0
    tag: int = 0


def ref(name: object) -> int:
    """A number that stands for a name (of a request, a step, an engine) in every process. Never 0."""
    digest = hashlib.blake2b(str(name).encode("utf-8", "replace"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & _MASK) or 1


def _check(number: int, words: tuple[int, ...]) -> int:
    return zlib.crc32(_WORDS_AS_BYTES.pack(number, *words))


class Writer:
    """This process's ring. Made whole and locked before it gets the name under which others look for it."""

    def __init__(self, folder: Path, engine: int) -> None:
        """Raises OSError where there can be no file."""
        self.path = folder / f"{engine:016x}-{uuid.uuid4().hex}{SUFFIX}"
        newborn = self.path.with_name(f".{self.path.name}.new")
        handle = os.open(newborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(handle, 0, _SIZE)  # a hole on a full disk would be SIGBUS at a store
            self._memory = mmap.mmap(handle, _SIZE)  # holds the file, and with it the lock
            self._words = memoryview(self._memory).cast("q")
            self._words[0] = _MAGIC
            newborn.rename(self.path)
        except BaseException:
            with suppress(OSError):
                newborn.unlink()
            raise
        finally:
            os.close(handle)

    def write(self, record: Record) -> None:
        """Under the caller's lock: one at a time."""
        count = self._words[_COUNT]
        at = (_PAGE // 8) + (count % RECORDS) * _WORDS
        words = (int(record.kind), record.start, record.end, record.more, record.ref, record.tag, 0)
        for i, word in enumerate((*words, _check(count, words))):
            self._words[at + i] = word
        self._words[_COUNT] = count + 1  # last: from here on it is there

    def show_open(self, start: int | None, tag: int) -> None:
        """Since when a serving thread has been in a cold call, and in which step; None while none is."""
        self._words[_OPEN_TAG] = tag
        self._words[_OPEN] = start or 0

    def close(self) -> None:
        """Lets the file go. It stays for those who have not read it yet, see `sweep`."""
        self._words.release()
        self._memory.close()


class Reader:
    """The ring of a peer. Raises OSError or ValueError for a file that is none."""

    __slots__ = ("_memory", "_path", "_seen", "_words", "lost")

    def __init__(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._memory = mmap.mmap(handle, _SIZE, prot=mmap.PROT_READ)  # ValueError if it is shorter
        finally:
            os.close(handle)
        self._words = memoryview(self._memory).cast("q")
        if self._words[0] != _MAGIC:
            raise ValueError(f"{path}: no journal of stalls")
        self._path = path
        self._seen = 0
        self.lost = 0  # records that were overwritten before they were read

    @property
    def has_news(self) -> bool:
        return self._words[_COUNT] != self._seen

    def news(self) -> Iterator[Record]:
        """What was written since the last time, up to now: a peer that goes on writing holds nobody up."""
        words = self._words
        until = words[_COUNT]
        oldest = until - RECORDS
        if self._seen < oldest:
            self.lost += oldest - self._seen if self._seen else 0  # what was there before we came is not lost
            self._seen = oldest
        while self._seen < until:
            this = self._seen
            at = (_PAGE // 8) + (this % RECORDS) * _WORDS
            kind, start, end, more, number, tag, spare, check = words[at : at + _WORDS].tolist()
            if check != _check(this, (kind, start, end, more, number, tag, spare)):
                if words[_COUNT] - this < RECORDS:
                    return  # not all of it is here yet
                self.lost += 1
                self._seen = max(self._seen, this + 1)
                continue
            self._seen = max(self._seen, this + 1)  # a signal's handler may have read on in between
            if kind in Kind._value2member_map_:  # a later version may write more
                yield Record(Kind(kind), start, end, more, number, tag)

    def open_stall(self) -> tuple[int, int] | None:
        """Since when a serving thread of the peer has been in a cold call, and the step's tag.

        None if none is, or the peer has died in it.
        """
        start, tag = self._words[_OPEN], self._words[_OPEN_TAG]
        if not start:
            return None
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return start, tag
        finally:
            os.close(handle)
        return None

    def close(self) -> None:
        self._words.release()
        self._memory.close()


class Peers:
    """The journals of the other processes of one engine, as they come and go."""

    def __init__(self, folder: Path, engine: int, mine: Path) -> None:
        self._folder = folder
        self._pattern = f"{engine:016x}-*{SUFFIX}"
        self._mine = mine
        self._readers: dict[Path, Reader] = {}
        self._looked = -1
        self._looked_at = 0

    def news(self) -> Iterator[Record]:
        """What any of them wrote since the last time. The steady state costs one look at the folder and one a peer."""
        self._look()
        for reader in list(self._readers.values()):
            if reader.has_news:
                yield from reader.news()

    def are_quiet(self, now: int) -> bool:
        """Whether none has news or is in a cold call; who came within `LOOK_NS` may be missed."""
        if now - self._looked_at > LOOK_NS:
            self._looked_at = now
            self._look()
        try:
            for reader in self._readers.values():
                words = reader._words  # no calls: every step asks
                if words[_COUNT] != reader._seen or words[_OPEN]:
                    return False
        except (RuntimeError, ValueError):  # another thread lets peers come or go
            return False
        return True

    def open_stalls(self) -> list[tuple[int, int]]:
        """(start, tag) of the cold calls that the others are in."""
        self._look()
        return [found for reader in list(self._readers.values()) if (found := reader.open_stall()) is not None]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    @property
    def lost(self) -> int:
        return sum(reader.lost for reader in list(self._readers.values()))

    def _look(self) -> None:
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return  # the folder is gone: nobody new comes
        if changed == self._looked:
            return
        found = {path for path in self._folder.glob(self._pattern) if path != self._mine}
        for path in found - self._readers.keys():
            with suppress(OSError, ValueError):
                self._readers[path] = Reader(path)
        for path in self._readers.keys() - found:
            if not self._readers[path].has_news:  # else at the next look
                self._readers.pop(path).close()
        # A file that comes within the clock's tick after this look leaves the same time: look again until it is past.
        self._looked = changed if time.time_ns() - changed > 20_000_000 else -1


def sweep(folder: Path, older_than: float = STALE, at_most: int = DEAD) -> None:
    """Removes journals of processes that died: the old ones, those with nothing in them, and others beyond the newest.

    A server that forks a child for each job has as many; and each of them is asked at the end of every step.
    """
    for path in folder.glob(f".*{SUFFIX}.new"):
        with suppress(OSError):
            # Its age first: to ask for the lock of one that is just being made would be in its maker's way.
            if time.time() - path.lstat().st_mtime > older_than and _written_by_the_dead(path) is not None:
                path.unlink()
    dead: list[tuple[float, Path]] = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            written, born = _written_by_the_dead(path), path.lstat().st_mtime
            if written == 0 or (written is not None and time.time() - born > older_than):
                path.unlink()
            elif written is not None:
                dead.append((born, path))
    for _, path in sorted(dead)[: max(0, len(dead) - at_most)]:
        path.unlink(missing_ok=True)


def _written_by_the_dead(path: Path) -> int | None:
    """How many records a process wrote that is dead; None if it lives. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return int.from_bytes(os.pread(handle, 8, 8 * _COUNT), sys.byteorder)
    except BlockingIOError:
        return None
    finally:
        os.close(handle)
