"""Keeps a process's census in a file of its ledger directory, and reads those of all processes together.

A thread writes at each cold call, once a second at most, so that a process which is killed leaves what it met;
launches, whose counts nobody announces, are written every half minute and at exit. A forked child has a census of its
own, in which it counts its launches of what its parent met. The files are written whole or not at all; those of dead
processes become one, once there are many.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tritonprobe.documents import read_json
from tritonprobe.ends import at_end
from tritonprobe.files import write_whole
from tritonprobe.forks import tell_in_child
from tritonprobe.ledger import FileLedger
from tritonprobe.ledger.alone import alone
from tritonprobe.ledger.directory import is_locked
from tritonprobe.ledger.layout import SUFFIX
from tritonprobe.model import ColdCall, Event
from tritonprobe.shapes.census import Census, CensusError, merge
from tritonprobe.shapes.census_json import pieces

log = logging.getLogger("tritonprobe")

_CENSUS_OF = re.compile(r"census-([0-9a-f]{32})\.json").fullmatch
"""A process's census bears the name of its ledger file, whose lock says that the process lives. Its number would not
do: in two containers that share a directory two may have the same, and neither finds the other in its /proc."""
FOLDED, LOCK = "census-folded.json", "census.lock"
MODE = 0o600
"""As the ledgers beside them: for their owner alone. A census that somebody asks for is a file like any other."""
MANY = 64
"""Files above which those of dead processes are folded into one."""
SOON, LATEST = 1.0, 30.0
"""Seconds between writings of what is new, and of launches."""


class CensusKeeper:
    """Writes the census of this process beside its ledger's file, from its first cold call on and at its end."""

    def __init__(self, ledger: FileLedger, census: Callable[[], Census], fault: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._census = census
        self._fault = fault
        self._new = threading.Event()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._written: bytes | None = None
        tell_in_child(self)
        at_end(self.write)

    def note(self, event: Event) -> None:
        """A cold call may be new to the census; made for `Bus.subscribe`."""
        if not isinstance(event, ColdCall):
            return
        self._new.set()
        self._begin()

    def write(self) -> None:
        """Writes what there is now, unless it is there already. Never raises."""
        ledger = self._ledger.path
        if self._thread is None or ledger is None:
            return  # nothing was ever met, or this process counts in memory
        try:
            if not ledger.exists():
                return  # without its ledger beside it, a census would be taken for a dead process's
            with self._lock:
                census = self._census()
                if census.is_of_nothing and self._written is None:
                    return  # a child that has launched nothing
                digest = hashlib.sha256()
                for piece in pieces(census):
                    digest.update(piece.encode(errors="replace"))
                if digest.digest() != self._written:
                    write_whole(ledger.with_name(f"census-{ledger.stem}.json"), pieces(census), MODE)
                    self._written = digest.digest()
        except FileNotFoundError:
            log.debug("tritonprobe: %s is gone, and the census with it", ledger.parent)
        except Exception:
            self._fault("census")

    def after_fork(self) -> None:
        """For a forked child, which has a census of its own."""
        met = self._thread is not None
        self._lock = threading.RLock()
        self._new = threading.Event()
        self._thread = self._written = None
        if met:
            self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._keep, name="tritonprobe-census", daemon=True)
                    self._thread.start()

    def _keep(self) -> None:
        ledger = self._ledger.path
        if ledger is not None:
            with suppress(OSError):
                fold(ledger.parent)
        while True:
            self._new.wait(LATEST)
            self._new.clear()
            self.write()
            time.sleep(SOON)


def collect(directory: Path) -> Census:
    """The censuses of all processes that count, or counted, in a directory. One that cannot be read is told of."""
    while True:
        gone = _folded(directory)
        found = []
        for path in _censuses(directory):
            try:
                if path.name not in gone:
                    found.append(Census.load(path))
            except CensusError as error:
                if path.exists():  # else it was folded meanwhile
                    log.warning("tritonprobe: a census was left out: %s", error)
        if _folded(directory) == gone:  # else somebody folded meanwhile, and a file may have counted twice
            return merge(*found)


def fold(directory: Path, above: int = MANY) -> int:
    """Makes one file of those whose processes are dead, if there are many; how many those were. Raises OSError.

    What it folded is named in the new file before it goes, so that no kill lets anything count twice. What cannot be
    read now (it is a later version's, or this process has too many files open) is left alone, and if that is the folded
    one, all is.
    """
    if len(_censuses(directory)) <= above:
        return 0
    with alone(directory / LOCK) as ours:
        return _fold(directory) if ours else 0


def _fold(directory: Path) -> int:
    base = directory / FOLDED
    try:
        found = [Census.load(base)] if base.exists() else []
    except CensusError:
        return 0  # `collect` tells of it
    for name in _names(directory) if found else ():  # whoever folded them died before it could
        (directory / name).unlink(missing_ok=True)
    dead = []
    for path in _censuses(directory):
        with suppress(CensusError):
            if path != base and not _lives(path):
                found.append(Census.load(path))
                dead.append(path)
    if dead:
        write_whole(base, pieces(merge(*found), folded=[path.name for path in dead]), MODE)
    for path in dead:
        path.unlink(missing_ok=True)
    return len(dead)


def _censuses(directory: Path) -> list[Path]:
    """Those of processes, and the folded one; what a user keeps beside them is his own."""
    return sorted(path for path in directory.glob("census-*.json") if path.name == FOLDED or _CENSUS_OF(path.name))


def _folded(directory: Path) -> set[str]:
    """Files that are in the folded one, and may still be there."""
    with suppress(OSError, ValueError):
        return _names(directory)
    return set()


def _names(directory: Path) -> set[str]:
    """As `_folded`. Raises OSError and ValueError: what cannot be read now is not the same as none."""
    document = read_json((directory / FOLDED).read_bytes())
    names = document.get("folded") if isinstance(document, dict) else None
    # Only files of its own kind beside it: they are removed.
    return {n for n in names if isinstance(n, str) and _CENSUS_OF(n)} if isinstance(names, list) else set()


def _lives(path: Path) -> bool:
    """Whether the process lives whose census this is."""
    of = _CENSUS_OF(path.name)
    if of is None:
        return False  # the folded one is nobody's
    try:
        return is_locked(path.with_name(f"{of[1]}{SUFFIX}"))
    except FileNotFoundError:
        return False  # its ledger was folded
    except OSError:
        return True  # nobody can tell
