"""The launches that a window is told of, kept as columns of numbers: in C (`launch_log.c`), or as they are. Pure.

A window of a busy program sees twenty thousand launches. Kept as tuples they would be a hundred thousand objects that
the program's collector looks through and that somebody has to take apart: so a launch is written down as it comes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tritonprobe import native
from tritonprobe.gpu.spans import Ints
from tritonprobe.seen import Binary, Seen

SOURCE = Path(__file__).with_name("launch_log.c")
COLUMNS = 7

Kind = tuple[Binary, tuple[int, int, int, int], Hashable, bool]
"""Binary, grid and stream, what decides the bucket, and whether it is a trial: what recurs in launches."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Launches in the order in which they were told of; ``kind`` numbers ``kinds``. The others are fields of `Seen`."""

    kinds: Sequence[Kind]
    before: Ints
    after: Ints
    start_ns: Ints
    end_ns: Ints
    returned: Ints
    thread: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.kind)


class Log(Protocol):
    """Takes launches, as many as it was made for; what comes then is left out."""

    def append(self, seen: Seen, /) -> None: ...
    def __len__(self) -> int: ...


class Tuples:
    """A log that keeps launches as they are."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[Seen] = []

    def append(self, seen: Seen, /) -> None:
        if len(self.seen) < self.most:
            self.seen.append(seen)

    def __len__(self) -> int:
        return len(self.seen)


@functools.cache
def compiled() -> Any:
    """The module of C, or None."""
    return native.load(SOURCE)


def new(most: int) -> Log:
    module = compiled()
    return Tuples(most) if module is None else module.Log(most)


def logged(log: Log) -> Logged:
    """What was written so far. May be called while launches still come: those are not in it."""
    count = len(log)
    if isinstance(log, Tuples):
        return _columns(log.seen[:count])
    written: Any = log
    kinds = written.kinds()
    return Logged(kinds, *np.frombuffer(written, np.int64).reshape(COLUMNS, -1)[:, :count])


def _columns(seen: Sequence[Seen]) -> Logged:
    kinds: list[Kind] = []
    numbers: dict[Kind, int] = {}
    kind = []
    for s in seen:
        each = (s.binary, s.target, s.key, s.trial)
        try:
            number = numbers.setdefault(each, len(kinds))
        except Exception:  # it cannot be hashed, or not be compared
            number = len(kinds)
        if number == len(kinds):
            kinds.append(each)
        kind.append(number)
    rows = [(*s[3:8], s.thread, number) for s, number in zip(seen, kind, strict=True)]
    return Logged(kinds, *np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, COLUMNS).T))
