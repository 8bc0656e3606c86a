"""Files that are written for a user: whole or not at all, and only in the place of another file. Knows nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, text: Iterable[str], mode: int = 0o666) -> None:
    """Writes `text` to `path`. Raises OSError; a file that was there is then what it was.

    What is there and is no regular file (a device, a pipe) is written to, and a symbolic link is followed. `mode` is
    the new file's, less the umask.
    """
    if is_special(path):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(text)
        return
    target = Path(os.path.realpath(path))
    scratch = target.with_name(f".tritonprobe-{os.getpid()}.part")  # short, however long the file's own name
    try:
        scratch.unlink(missing_ok=True)
        # x follows no link that someone else may have planted
        with open(scratch, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def is_special(path: Path) -> bool:
    """Whether something is there that is no regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
