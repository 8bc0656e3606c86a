"""A cold call's reasons as a person reads them on a screen. Pure: knows the text of reasons, and no output format.

The story keeps reasons as they were recorded; here they are put in the order of what to look at first, and shortened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

MOST = 4
"""Reasons of one call that are spelt out; the rest are counted."""
LEGEND = "%16, ==1, other: classes of integers; tier: where a variant was; bucket: shapes (docs/how-it-works.md)"
"""The words that stand in reasons and tables and explain themselves to nobody."""
_TUNING = "no autotune winner yet for "
_DTYPE = re.compile(r"'torch\.(\w+)'")
_SHORT = (("bfloat", "bf"), ("float", "fp"))


def because(reasons: Sequence[str], error: str | None = None) -> str:
    """One sentence: what was specialised comes first, then what had to be tuned."""
    ordered = sorted(reasons, key=lambda reason: reason.startswith(_TUNING))
    said = [_tuning(reason) if reason.startswith(_TUNING) else reason for reason in ordered[:MOST]]
    if len(ordered) > MOST:
        said.append(f"and {len(ordered) - MOST} more")
    return "because " + ("; ".join(said) or "of no recorded reason") + (f"; raised {error}" if error else "")


def _tuning(reason: str) -> str:
    """``... for (512, 256, 'torch.float32', 'torch.float32')`` as ``... for (512, 256, 2 x fp32)``."""
    key = reason.removeprefix(_TUNING)
    if not (key.startswith("(") and key.endswith(")") and _DTYPE.search(key)):
        return reason
    parts = []
    for word, group in groupby(_DTYPE.sub(lambda found: _dtype(found[1]), key[1:-1].rstrip(",")).split(", ")):
        count = len(list(group))
        parts += [word] * count if word.isdigit() or count == 1 else [f"{count} x {word}"]
    return f"{_TUNING}({', '.join(parts)})"


def _dtype(name: str) -> str:
    for long, short in _SHORT:
        name = name.replace(long, short)
    return name
