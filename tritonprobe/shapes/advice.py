"""What a person can do about a reason. Pure: reads the lines that `reasons` writes, and answers in one sentence.

Advice is a suggestion to measure, never applied by itself: what avoids a recompile may slow every launch that follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from tritonprobe.shapes.reasons import NEW_KERNEL, SAME_VARIANT, cause_of

_INTEGER_CLASSES = frozenset({"%16", "==1", "other"})


def advice(reason: str) -> str | None:
    """What would make this reason stop, or None for a line that gives no ground for advice."""
    if reason == NEW_KERNEL:
        return "Prewarm the kernel before ready: its first call compiles or loads it, whatever the shapes."
    if reason == SAME_VARIANT:
        return (
            "Pass the options the same way in every call (left out or spelt out, not both); "
            "another device, or a cleared cache, needs a warm-up of its own."
        )
    cause = cause_of(reason)
    if cause is None:
        return None
    before, _, after = reason.partition(": ")[2].partition(" -> ")
    if cause.startswith("option "):
        option = cause.removeprefix("option ")
        return f"Prewarm with each `{option}` that traffic uses, or settle on one: each value is a binary of its own."
    if reason.startswith("constexpr "):
        return (
            f"If `{cause}` takes many values, make it a runtime argument or round it to a few; "
            "if it takes few, prewarm each. A constant may be what makes the kernel fast: measure."
        )
    return _argument_advice(reason.partition(": ")[0], before, after)


def advice_for(reasons: Iterable[str]) -> tuple[str, ...]:
    """The advice for a call's reasons, each sentence once, in the order of the reasons."""
    return tuple(dict.fromkeys(text for reason in reasons if (text := advice(reason)) is not None))


def _argument_advice(name: str, before: str, after: str) -> str:
    if "unaligned" in (before.split() + after.split()):
        return (
            f"Prewarm `{name}` unaligned too (a slice such as `{name}[1:]`), "
            "or copy it into an aligned buffer before the launch; warm-up tensors are aligned as a rule."
        )
    if before in _INTEGER_CLASSES and after in _INTEGER_CLASSES:
        both = f"Prewarm `{name}` in both classes ({before} and {after}), or "
        if "[" in name:
            return f"{both}pass it as an argument of its own: Triton specialises every element of a tuple."
        return f'{both}put it into `do_not_specialize=["{name}"]`; measure the latter, it slowed some kernels.'
    if "None" in (before, after):
        return f"Prewarm with `{name}` given and with None: each is a binary of its own."
    return (
        f"Prewarm `{name}` as {before} and as {after}, "
        "or convert it before the launch so that it always comes as one type."
    )
