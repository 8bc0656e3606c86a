"""What a prewarm skipped, and how that is told: each reason once, with the keys of winners after it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tritonprobe.wording import counted

MAX_NAMED = 8
"""Keys that one line names."""


@dataclass(frozen=True, slots=True)
class Skipped:
    kernel: str
    because: str
    winner: bool = False
    """It is an autotuner's winner; else it is a variant."""
    key: str | None = None
    """The winner's, as cold calls have it in their reasons; None if all of the kernel's were skipped."""


def told(skipped: Iterable[Skipped]) -> Iterator[str]:
    """A line for each kernel and reason, in order."""
    times: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], dict[str, None]] = {}
    for one in skipped:
        place = one.kernel, one.because
        named = keys.setdefault(place, {})
        if one.key is None:
            times[place] += 1
        else:
            named[one.key] = None
    for place in sorted(keys):
        kernel, because = place
        often = f" ({times[place]} times)" if times[place] > 1 else ""
        yield f"skipped {kernel}{often}: {because}{_winners(list(keys[place]))}"


def _winners(keys: list[str]) -> str:
    if not keys:
        return ""
    more = len(keys) - MAX_NAMED
    shown = [*keys[:MAX_NAMED], *([f"and {counted(more, 'more key')}"] if more > 0 else [])]
    return f"; {'winner' if len(keys) == 1 else 'winners'} for {', '.join(shown)}"
