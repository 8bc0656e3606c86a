"""How numbers of things and names of kernels are said to people. Knows English, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

_HISSES = ("s", "x", "z", "ch", "sh")


def counted(number: int, noun: str) -> str:
    """``1 cold call``, ``1,234 launches``, ``0 entries``: `noun` is the word for one of them."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(_HISSES):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def unit_of(seconds: float) -> tuple[str, float, int]:
    """The unit that a person would choose for this time: its name, how many make a second, and digits to show."""
    if seconds >= 1:
        return "s", 1.0, 0 if seconds >= 100 else 1
    if seconds >= 0.0001 or seconds == 0:
        return "ms", 1e3, 0 if seconds >= 0.01 or seconds == 0 else 1
    return "us", 1e6, 1


def cut(text: str, width: int) -> str:
    """`text` in `width` columns at most; an ellipsis says that there was more."""
    return text if len(text) <= width else text[: width - 1] + "…"


def short_names(kernels: Iterable[str]) -> dict[str, str]:
    """The last part of each name, where it says which kernel is meant; else the whole name."""
    names = set(kernels)
    tails = [name.rpartition(".")[2] for name in names]
    return {name: tail if tails.count(tail) == 1 else name for name, tail in zip(names, tails, strict=True)}
