"""Which directory the ledger files of one program start lie in, who may use it, and when it goes.

Knows the file system and nothing of what the files hold. `TRITONPROBE_DIR` names the directory; without it the first
process makes a fresh one, in memory (/dev/shm) where it can: on a disk, write-back can stall a store. It is the
maker's to remove, on a clean exit; after a crash it stays readable for a day at least, until a later start sweeps it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TRITONPROBE_DIR"
PREFIX = "tritonprobe-"
DAY = 86_400.0
ROOM = 64 << 20
"""Bytes that must be free under /dev/shm before we take some: NCCL and others fail without theirs."""

# File systems where a mapping is not shared between machines as a local one is, or locks are each machine's own.
_NETWORK = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    )
)
_NETWORK_FUSE = frozenset(
    (
        "blobfuse",
        "blobfuse2",
        "ceph-fuse",
        "curlftpfs",
        "davfs",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "juicefs",
        "moosefs",
        "rclone",
        "s3fs",
        "sshfs",
    )
)


class DirectoryError(Exception):
    """A directory that cannot be used; the message is one sentence that says why, and what would do."""


@dataclass(frozen=True, slots=True)
class Directory:
    """``fresh``: made by this process, for this program start, and its to remove."""

    path: Path
    fresh: bool


def choose(named: str | None, by: str = f"{VARIABLE}=") -> Directory:
    """The directory `named` (made if it is not there), else a fresh one. Raises DirectoryError. `by`: who named it."""
    if named:
        path = Path(named).absolute()
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if not path.is_symlink():  # named below
                raise DirectoryError(f"{by}{named}: cannot be made ({error.strerror})") from None
        check(path)
        return Directory(path, fresh=False)
    refused: list[str] = []
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108  # a fresh 0700 directory inside it
        try:
            if parent.name == "shm" and _free(parent) < ROOM:
                raise DirectoryError(f"{parent}: fewer than {ROOM >> 20} MiB are free, which are left to others")
            sweep(parent)
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            try:
                check(path)
            except DirectoryError:
                path.rmdir()
                raise
            return Directory(path, fresh=True)
        except DirectoryError as error:
            refused.append(str(error))
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
    raise DirectoryError(f"no directory for the ledger; name one with {VARIABLE} ({'; '.join(refused)})")


def check(path: Path) -> None:
    """Whether this process may keep its numbers in `path`. Raises DirectoryError."""
    found = _directory(path)
    me = os.geteuid()
    if found.st_uid != me:
        raise DirectoryError(f"{path}: belongs to UID {found.st_uid}, not to UID {me}; name one that is not there yet")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryError(f"{path}: others may write into it; chmod 700 it, or name one that is not there yet")


def check_readable(path: Path) -> None:
    """Whether the numbers in `path` can be read and trusted to be current. Raises DirectoryError."""
    _directory(path)
    if not os.access(path, os.R_OK | os.X_OK):
        raise DirectoryError(f"{path}: may not be read by UID {os.geteuid()}")


def file_system(path: Path, mounts: str) -> str | None:
    """The type of the file system that `path` lies on, from the text of /proc/self/mountinfo; None if it isn't told."""
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        place, separator, source = line.partition(" - ")
        fields, kinds = place.split(), source.split()
        if not separator or len(fields) < 5 or not kinds:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        # Of several mounts on one point the last one is seen.
        if path.is_relative_to(point) and (found is None or len(point) >= found[0]):
            found = (len(point), kinds[0])
    return None if found is None else found[1]


def is_network(kind: str) -> bool:
    """Whether a file system of this type lies on another machine."""
    name, _, fuse = kind.partition(".")
    return name in _NETWORK or (name.startswith("fuse") and fuse in _NETWORK_FUSE)


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of a file. Raises OSError if it cannot be opened."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return holds(handle)
    finally:
        os.close(handle)


def holds(handle: int) -> bool:
    """Whether someone else, be it in this process, holds the lock of an open file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def in_use(path: Path) -> bool:
    """Whether a living process holds a file of the directory."""
    seen: set[Path] | None = None
    while True:
        files = set(path.iterdir())
        if files == seen:
            return False
        # A forked child lets its parent's file go once its own is there, which has come since: look again.
        if any(map(_is_held, files)):
            return True
        seen = files


def leave(directory: Directory) -> None:
    """At the maker's clean exit: removes a fresh directory, unless other processes still count in it. Never raises."""
    with suppress(OSError):
        if directory.fresh and not in_use(directory.path):
            shutil.rmtree(directory.path)


def sweep(parent: Path, older_than: float = DAY) -> None:
    """Removes own directories of earlier starts in `parent` that are untouched for `older_than` seconds and unused."""
    for path in own(parent):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > older_than and not in_use(path):
                shutil.rmtree(path)


def _is_held(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and is_locked(path)
    except FileNotFoundError:
        return False  # a file that has just gone is nobody's
    except OSError:
        return True


def own(parent: Path) -> Iterator[Path]:
    """This user's fresh directories in `parent`."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                yield path


def _free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _directory(path: Path) -> os.stat_result:
    try:
        found = path.lstat()
    except OSError as error:
        raise DirectoryError(f"{path}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise DirectoryError(f"{path}: is a symbolic link, which someone else may have planted; name the directory")
    if not stat.S_ISDIR(found.st_mode):
        raise DirectoryError(f"{path}: is not a directory")
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found  # without /proc nobody can tell
    kind = file_system(path.resolve(), mounts)
    if kind is not None and is_network(kind):
        raise DirectoryError(f"{path}: lies on a network file system ({kind}); name a local one, best under /dev/shm")
    return found
