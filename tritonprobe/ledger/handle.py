"""A descriptor that is kept. Knows its file again: a daemon may have closed it, and its number be another file's."""

from __future__ import annotations

import os


class Handle:
    """The descriptor of an open file, which goes with this object."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = self._now()

    def close(self) -> None:
        try:
            if self._now() == self._file:
                os.close(self.number)
        except OSError:
            pass  # closed by someone else
        self.number = -1

    __del__ = close

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self.number)
        return found.st_dev, found.st_ino
