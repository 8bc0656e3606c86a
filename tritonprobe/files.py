"""Files that are written for a user: whole or not at all, and only in the place of another file. Knows nothing else."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_PREFIX, _SUFFIX = ".tritonprobe-", ".part"
STALE_SECONDS = 86_400.0
"""After so long without a write a file that is not in its place yet was left by a kill."""


def write_whole(path: Path, text: Iterable[str], mode: int = 0o666) -> None:
    """Writes `text` to `path`. Raises OSError; a file that was there is then what it was.

    What is there and is no regular file (a device, a pipe) is written to, and a symbolic link is followed. `mode` is
    the new file's, less the umask.
    """
    if is_special(path):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(text)
        return
    with replacing(path, mode) as file:
        file.writelines(piece.encode() for piece in text)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block, unless that raises. Raises OSError.

    Nobody else's meanwhile: other threads may write here, and processes of other machines with the same number. What a
    kill left of such files goes.
    """
    target = Path(os.path.realpath(path))
    _sweep(target.parent)
    scratch = target.with_name(f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")  # short, however long the file's own name
    try:
        # x follows no link that someone else may have planted
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    with suppress(OSError):  # the folder may not be listed
        for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            with suppress(OSError):  # it is somebody else's, or another writer sweeps, too
                if time.time() - left.lstat().st_mtime > STALE_SECONDS:
                    left.unlink()


def is_special(path: Path) -> bool:
    """Whether something is there that is no regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
