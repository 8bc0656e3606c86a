"""What an autotuner's trial launches: its variant and its grid, which is known only once Triton asks for it.

A grid is often a function of the configuration, so that of one configuration and size is wrong for the next. The trial
gets a grid that answers as the program's own does, which is asked as often as before, and remembers the first answer.
Touches the local name `kernel` of Triton's `run`, which asks for the grid.
"""

from __future__ import annotations

import sys
from typing import Any


class Watched:
    """The first launch of one trial."""

    __slots__ = ("_grid", "_kernel")

    def __init__(self) -> None:
        self._kernel: Any = None
        self._grid: Any = None

    def grid(self, theirs: Any) -> Any:
        """What the trial is given in the place of `theirs`."""
        if callable(theirs):

            def asked(arguments: Any) -> Any:
                found = theirs(arguments)
                if self._grid is None:
                    self._first(found)
                return found

            return asked
        return _Fixed(theirs, self) if isinstance(theirs, (tuple, list)) else theirs

    def launched(self) -> tuple[str, tuple[int, ...]] | None:
        """The variant's hash, and the grid; None if there was no launch."""
        if self._kernel is None:
            return None
        return str(self._kernel.hash), tuple(int(n) for n in self._grid)

    def _first(self, grid: Any) -> None:
        self._grid = grid
        self._kernel = sys._getframe(2).f_locals.get("kernel")


class _Fixed(tuple[Any, ...]):
    """A grid without a function: hooks of the program find it among their arguments, and read it as the tuple it is."""

    _watched: Watched

    def __new__(cls, grid: Any, watched: Watched) -> _Fixed:
        made = super().__new__(cls, grid)
        made._watched = watched
        return made

    def __call__(self, _arguments: Any) -> tuple[Any, ...]:
        if self._watched._grid is None:
            self._watched._first(tuple(self))
        return tuple(self)
