"""A ledger directory, served by a process that has nothing to do with those that count in it.

It reads their files and takes no lock of theirs, so it answers while they compile, hang or are dead. One exporter a
directory: it holds the lock of a file in it, which says who and where it is. Knows files and `http`; no program.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tritonprobe.export.http import Server, serve
from tritonprobe.ledger import DirectoryReader, Readable, Sample, signs
from tritonprobe.ledger.directory import DirectoryError, check_readable, is_locked
from tritonprobe.ledger.layout import BASE_NAME, SUFFIX, FormatError
from tritonprobe.ledger.reading import generation, ledger_files
from tritonprobe.ledger.schema import INFO, PREWARMS, READY
from tritonprobe.prewarming.keeper import collect
from tritonprobe.settings import Settings
from tritonprobe.shapes.census import Census
from tritonprobe.story import tell, to_json

log = logging.getLogger("tritonprobe")

LOCK_NAME = "exporter.lock"
_REPLAYS = {
    "failed": "a census could not be replayed: the program's log says why",
    "stopped": "the ready_timeout passed, or somebody stopped it, before prewarming was done",
    "done": "prewarming is done",
    "no_device": "not prewarmed: no device was in use yet where tritonprobe.ready() was called",
}


_MEASURED = ("launches, tiers and every phase of cold calls are what all processes of the directory counted",)
_ABSENT = "single cold calls, their reasons, and requests: they stay in the probed process, where serve() has them"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the story is told from: counts, and neither calls nor requests."""

    device: str
    ledger: Readable
    ready_unix_ns: int | None
    cold_calls: tuple[()] = ()
    requests: tuple[()] = ()


class Exported:
    """What is served: the directory as one ledger. Ready while a living process of it is."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.settings = settings
        self._path = path
        self.ledger = DirectoryReader(path, settings.series_budget)

    @property
    def ready_unix_ns(self) -> int | None:
        for family in self.ledger.collect():
            if family.metric is READY:
                return max((int(s.value * 1e9) for s in family.samples if isinstance(s, Sample)), default=None)
        return None

    @property
    def ready_because(self) -> str | None:
        """What is known here of why: what came of a replay, whether one was asked for, and that nobody lives there."""
        if is_counting(self._path):
            return self._of_replays()
        with suppress(OSError, FormatError):
            if ledger_files(self._path) or generation(self._path):
                return f"no living process: those that counted in {self._path} have ended"
        return f"no process counts in {self._path} yet"

    def _of_replays(self) -> str | None:
        families = {family.metric: family.samples for family in self.ledger.collect()}
        if not any(isinstance(sample, Sample) for sample in families.get(READY, ())):
            census = self.settings.prewarm
            return None if census is None else f"ready() comes after prewarming from {census}"
        replays = families.get(PREWARMS, ())
        outcomes = {sample.labels[0] for sample in replays if isinstance(sample, Sample) and sample.value}
        # Those that have ended are counted as well: of several kinds, nobody knows which is that of who lives now.
        return _REPLAYS.get(outcomes.pop()) if len(outcomes) == 1 else None

    def report(self) -> object:
        """The story of all processes of the directory together, as far as counts tell it."""
        info = (f.samples for f in self.ledger.collect() if f.metric is INFO)
        place = INFO.labels.index("device")
        none = "no device yet" if is_counting(self._path) else "no living process"
        device = next((sample.labels[place] for samples in info for sample in samples), none)
        story = tell(_Told(device, self.ledger, self.ready_unix_ns))
        return to_json(replace(story, measured=_MEASURED, absent=(*story.absent, _ABSENT)))

    def census(self) -> Census:
        """Those of all processes of the directory, together."""
        return collect(self._path)

    def fault(self, part: str) -> None:
        """A scrape that failed is not in the next one: these numbers are the program's."""
        log.debug("tritonprobe: a fault in %s", part, exc_info=True)


@contextmanager
def exporting(path: Path, settings: Settings) -> Iterator[Server]:
    """Serves the directory until the block ends.

    Raises DirectoryError if it cannot be served or is served already, and OSError if the address cannot be listened on.
    """
    check_exportable(path)
    handle = _claim(path)
    try:
        exported = Exported(path, settings)
        with serve(exported, report=exported.report) as server:
            _tell(handle, server)
            yield server
    finally:
        if handle is not None:
            os.close(handle)


def check_exportable(path: Path) -> None:
    """Whether `path` is a ledger's directory, or empty, and this user's. Raises DirectoryError."""
    check_readable(path)
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise DirectoryError(f"{path}: belongs to UID {owner}, not to UID {os.geteuid()}; export it as its owner")
    names = [found.name for found in path.iterdir()]
    ours = (BASE_NAME, LOCK_NAME, signs.SWITCH)  # it may have been switched off before anything counted there
    if names and not any(name.endswith(SUFFIX) or name in ours for name in names):
        raise DirectoryError(f"{path}: has no ledger in it, but {names[0]}; name the directory of TRITONPROBE_DIR")


def is_counting(path: Path) -> bool:
    """Whether a living process has a ledger file in the directory."""
    files: list[Path] = []
    with suppress(OSError):  # it may be gone
        files = ledger_files(path)
    for file in files:
        with suppress(OSError):
            if is_locked(file):
                return True
    return False


def _claim(path: Path) -> int | None:
    """The lock, or None where no file can be made. Raises DirectoryError if someone else holds it."""
    try:
        handle = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOSPC):
            log.info("tritonprobe: %s: no lock can be made there (%s); others may serve it, too", path, error.strerror)
            return None
        raise DirectoryError(f"{path / LOCK_NAME}: cannot be opened ({error.strerror})") from None
    try:
        # flock: who sweeps or leaves the directory sees by it that it is in use, and this process forks nobody.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "a process that is starting"
        os.close(handle)
        raise DirectoryError(f"{path}: is served already, by {who}; one exporter a directory is enough") from None
    return handle


def _tell(handle: int | None, server: Server) -> None:
    if handle is not None:
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} at {server.url}\n".encode(), 0)
