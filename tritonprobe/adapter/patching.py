"""Reversible attribute replacements. Knows nothing of Triton.

A patch is taken back only where it is still in place. Where somebody wrapped it meanwhile, it stays underneath
theirs, and since every wrapper of ours asks whether it is switched on, it then passes calls through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
        self._kept: list[_Patch] = []  # left underneath somebody's wrapper by an earlier `undo`

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets ``owner.name`` to ``make(original)``.

        `make` gets the plain function (a staticmethod's function, a class's unbound one). Raises AttributeError where
        there is no such attribute: callers decide what to do without it.
        """
        before = vars(owner).get(name, _ABSENT)
        original = getattr(owner, name)
        for patch in self._kept:
            if patch.owner is owner and patch.name == name:
                self._kept.remove(patch)
                if _reaches(before, patch.ours):
                    self._done.append(patch)  # it wakes up again; a second one would count everything twice
                    return
                break
        ours = make(original)
        if isinstance(before, staticmethod):
            ours = staticmethod(ours)
        setattr(owner, name, ours)
        self._done.append(_Patch(owner, name, before, ours))

    def extend(self, later: Patches) -> None:
        """Takes over another stack's replacements, which came after these."""
        self._done.extend(later._done)
        self._kept.extend(later._kept)
        later._done.clear()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Of the replacements made within the block all stay, or none if it raises."""
        before = len(self._done)
        try:
            yield
        except BaseException:
            self.undo(before)
            raise

    def undo(self, keep: int = 0) -> list[str]:
        """Takes back all but the first `keep`; returns the names that somebody else had wrapped and were left alone."""
        left = []
        while len(self._done) > keep:
            patch = self._done.pop()
            if vars(patch.owner).get(patch.name) is not patch.ours:
                self._kept.insert(0, patch)
                left.append(f"{getattr(patch.owner, '__name__', patch.owner)}.{patch.name}")
            elif patch.before is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
        return left


def _reaches(function: Any, ours: Any, depth: int = 4) -> bool:
    """Whether calling `function` can come to `ours`: through what it wraps, closes over, or names as a global."""
    if function is ours:
        return True
    if depth == 0:
        return False
    inside = [getattr(function, name, None) for name in ("__wrapped__", "__func__", "func")]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            inside.append(cell.cell_contents)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    inside += [names[name] for name in getattr(code, "co_names", ()) if name in names]
    inside += getattr(function, "__defaults__", None) or ()
    return any(callable(each) and _reaches(each, ours, depth - 1) for each in inside)
