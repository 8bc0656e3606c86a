"""Reversible attribute replacements. Knows nothing of Triton.

A patch is taken back only where it is still in place. Where somebody wrapped it meanwhile, it stays underneath
theirs, and since every wrapper of ours asks whether it is switched on, it then passes calls through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(slots=True)
class _Patch:
    owner: Any
    name: str
    before: Any  # what the owner's own dict held, descriptors unwrapped by nobody; _ABSENT if it was inherited
    ours: Any


class Patches:
    """A stack of replaced attributes: `undo()` takes them back in reverse order."""

    def __init__(self) -> None:
        self._done: list[_Patch] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets ``owner.name`` to ``make(original)``.

        `make` gets the plain function (a staticmethod's function, a class's unbound one). Raises AttributeError where
        there is no such attribute: callers decide what to do without it.
        """
        before = vars(owner).get(name, _ABSENT)
        original = getattr(owner, name)
        ours = make(original)
        if isinstance(before, staticmethod):
            ours = staticmethod(ours)
        setattr(owner, name, ours)
        self._done.append(_Patch(owner, name, before, ours))

    def extend(self, later: Patches) -> None:
        """Takes over another stack's replacements, which came after these."""
        self._done.extend(later._done)
        later._done.clear()

    def undo(self) -> list[str]:
        """Takes everything back; returns the names that somebody else had wrapped and that were left alone."""
        left = []
        while self._done:
            patch = self._done.pop()
            if vars(patch.owner).get(patch.name) is not patch.ours:
                left.append(f"{getattr(patch.owner, '__name__', patch.owner)}.{patch.name}")
            elif patch.before is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
        return left
