"""Folding: the counts of dead processes go into one base file, and their own files go.

Under a lock, and safe against a crash between any two steps: sums, exemplars and the uuids of the files in them are
written to a temporary file, synced, renamed over the base; only then are the files removed. A reader leaves out
whatever file the base names, so that nothing is counted twice or not at all. Gauges die with their process. A file that
is damaged, or has series that this version does not know, is left alone.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from math import isfinite
from pathlib import Path

from tritonprobe.ledger import signs
from tritonprobe.ledger.alone import alone
from tritonprobe.ledger.directory import holds, is_locked
from tritonprobe.ledger.layout import BASE_NAME, SUFFIX, Base, FormatError, Sum, pack_base, schema_id
from tritonprobe.ledger.memory import overflow
from tritonprobe.ledger.reading import LedgerFile, ledger_files, opened, read_base
from tritonprobe.ledger.store import worth_keeping
from tritonprobe.ledger.totals import SUMMED

DEAD_FILES = 64
"""How many dead files may lie about before they are folded."""
MAX_SLOTS = 100_000
"""How many sums a base may hold; what else dead processes counted goes to `other`."""

_LOCK = "fold.lock"
_TEMPORARY = ".base.new"
_NEWBORN_SECONDS = 60.0  # a file under a temporary name that nobody holds after so long was left by a crash


def fold(directory: Path, above: int = DEAD_FILES, wait: float = 0.0) -> int:
    """Folds the directory's dead files if there are more than `above`. Returns how many it folded.

    Does nothing while another process or thread folds, for whose end it waits so many seconds at most. Raises OSError,
    and FormatError for a base that it cannot read.
    """
    if len(ledger_files(directory)) <= above:
        return 0
    with alone(directory / _LOCK, wait) as ours:
        return _fold(directory, above) if ours else 0


def exact(numbers: Iterable[float]) -> list[float]:
    """The fewest floats, or nearly, whose exact sum is that of `numbers` (Shewchuk's expansion). All must be finite."""
    parts: list[float] = []
    for number in numbers:
        rest, kept = number, 0
        for part in parts:
            big, small = (rest, part) if abs(rest) >= abs(part) else (part, rest)
            rest = big + small
            lost = small - (rest - big)
            if lost:
                parts[kept] = lost
                kept += 1
        parts[kept:] = [rest]
    return parts


def _fold(directory: Path, above: int) -> int:
    base = read_base(directory)
    files = ledger_files(directory)
    for path in files:
        if _uuid(path) in base.folded:  # its folder died before it could
            path.unlink(missing_ok=True)
    _remove_stillborn(directory)
    dead = [found for path in files if _uuid(path) not in base.folded and (found := _dead(path)) is not None]
    if len(dead) <= above:
        return 0
    folded = tuple(_uuid(source.path) for source, _ in dead)
    _write_base(directory, Base(os.urandom(16), folded, _add_up(base, dead)))
    for source, _ in dead:
        source.path.unlink(missing_ok=True)
    signs.sweep(directory)
    return len(dead)


def _add_up(base: Base, dead: Iterable[tuple[LedgerFile, array[float]]]) -> tuple[Sum, ...]:
    sums = {(kept.schema_id, kept.labels): [list(parts) for parts in kept.parts] for kept in base.sums}
    traced = {(kept.schema_id, kept.labels): kept.traced for kept in base.sums}
    slots = sum(len(parts) for parts in sums.values())
    for source, values in dead:
        for series in source.series:
            numbers = values[series.first : series.end]
            if series.metric.kind not in SUMMED or not all(map(isfinite, numbers)):
                continue
            key = (schema_id(series.metric), series.labels)
            if key not in sums and slots + series.metric.slots > MAX_SLOTS:
                key = (key[0], overflow(series.metric, series.labels))
            if key not in sums:
                sums[key] = [[] for _ in range(series.metric.slots)]
                slots += series.metric.slots
            for parts, value in zip(sums[key], numbers, strict=True):
                parts.append(value)
            if series.metric.kind == "histogram":
                traced[key] = worth_keeping(traced.get(key), series.traced(values))
    return tuple(
        Sum(*key, tuple(tuple(exact(numbers)) for numbers in parts), traced.get(key)) for key, parts in sums.items()
    )


def _dead(path: Path) -> tuple[LedgerFile, array[float]] | None:
    """A file that nobody will write to again, and its last values; None if it is not one that can be folded."""
    file = LedgerFile(path)
    try:
        with opened(path) as handle:
            if holds(handle):
                return None
            values = file.snapshot(handle)
    except (OSError, FormatError):
        return None
    return None if file.unknown or file.damage is not None else (file, values)


def _write_base(directory: Path, base: Base) -> None:
    temporary = directory / _TEMPORARY
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(pack_base(base))
            file.flush()
            os.fsync(handle)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a base would take the last room of a full file system
        raise
    temporary.rename(directory / BASE_NAME)
    home = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(home)  # on a disk: the new name is there before the old files go
    finally:
        os.close(home)


def _remove_stillborn(directory: Path) -> None:
    for path in directory.glob(f".*{SUFFIX}.new"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _NEWBORN_SECONDS and not is_locked(path):
                path.unlink()


def _uuid(path: Path) -> bytes:
    try:
        return bytes.fromhex(path.stem)
    except ValueError:
        return b""  # no ledger's name; `LedgerFile` refuses it
