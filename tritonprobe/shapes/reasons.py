"""Why a variant had to be made: what differs from the nearest variant seen. Pure: knows the model's types only.

The nearest variant is the one with the fewest differing arguments and options; among equals, the most recent. One line
says one difference:

``n: %16 -> ==1``               an integer argument's specialisation
``n: i32 %16 -> i64 other``     its type as well
``x: %16 -> unaligned``         a pointer's alignment
``x: fp16 -> bf16``             a tensor's element type
``v: fp32 -> i32 %16``          a scalar that came as another type
``y: *fp32 %16 -> None``        an argument that was not given
``s[1]: %16 -> ==1``            an element of a tuple argument
``constexpr S: 1024 -> 1025``   a constant
``option num_warps: 4 -> 8``    a compiler option
``new kernel``                  no variant of the kernel was seen
``same variant, other in-memory key``  options spelt out, another device, or a cleared cache
``same variant, which raised before``  nothing was kept of the call before, so this one begins anew

A variant that raised was never made: it is nobody's nearest.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from operator import ne
from sys import intern

from tritonprobe.forks import tell_in_child
from tritonprobe.model import ArgClass, Variant

NEW_KERNEL = "new kernel"
SAME_VARIANT = "same variant, other in-memory key"
RAISED_BEFORE = "same variant, which raised before"
MAX_LINES = 32
"""Differences listed for one variant; what is beyond is counted in a last line."""
MAX_VALUE = 60
"""Characters of one class in a line; a longer constant is cut and ends in a digest, so that two of them differ."""
MAX_VARIANTS = 512
"""Variants remembered for each kernel."""
MAX_KERNELS = 4096
"""Kernels remembered."""

_OPTION = "option"
_CONSTEXPR = "constexpr"
_SCALAR_VALUES = frozenset({"%16", "==1", "other", "unspecialised"})


class _Seen:
    """A variant taken apart for comparing: every argument and option under the name it has in a reason."""

    __slots__ = ("classes", "flat", "made_before", "names", "raised")

    def __init__(self, variant: Variant) -> None:
        self.raised = False  # when it was met last
        self.made_before = False  # when it was met earlier
        self.classes: dict[str, ArgClass] = dict(variant.args)
        for name, value in variant.options:
            self.classes[intern(f"{_OPTION} {name}")] = ArgClass(_OPTION, value)
        self.names = tuple(self.classes)
        # Interned text compares by identity, many times faster than ArgClass: a call that finds its variant on the disk
        # takes a millisecond or two in all, and hundreds of variants may be there to compare with.
        self.flat = tuple(intern(f"{c.type}\0{c.value}") for c in self.classes.values())

    @property
    def exists(self) -> bool:
        """Whether it was made at any time, as far as was told."""
        return self.made_before or not self.raised

    def distance(self, other: _Seen) -> int:
        """How many arguments and options differ."""
        if self.names == other.names:
            return sum(map(ne, self.flat, other.flat))
        return sum(
            self.classes.get(name) != other.classes.get(name) for name in self.classes.keys() | other.classes.keys()
        )


def reasons(new: Variant, seen: Sequence[Variant]) -> tuple[str, ...]:
    """Why `new` is cold, one line a difference from the nearest of `seen`, which lists the most recent last."""
    return (SAME_VARIANT,) if new in seen else _reasons(_Seen(new), [_Seen(variant) for variant in reversed(seen)])


def cause_of(reason: str) -> str | None:
    """What changed, as a label: the argument, or ``option num_warps``. None for a reason that blames neither.

    An element of a tuple counts for its argument: ``s[1]: ...`` gives ``s``.
    """
    name, colon, _ = reason.partition(": ")
    if not colon:
        return None
    if name.startswith(f"{_OPTION} "):
        return name
    return name.removeprefix(f"{_CONSTEXPR} ").partition("[")[0]


class VariantMemory:
    """The variants seen, by kernel, the most recently used last. Safe from any thread.

    Bounded: the least recently used variant of a kernel, and the least recently used kernel, are forgotten first. What
    was forgotten is explained like something new.
    """

    __slots__ = ("__weakref__", "_kernels", "_lock", "_max_kernels", "_max_variants")

    def __init__(self, *, max_variants: int = MAX_VARIANTS, max_kernels: int = MAX_KERNELS) -> None:
        self._max_variants = max_variants
        self._max_kernels = max_kernels
        self._kernels: dict[str, dict[Variant, _Seen]] = {}  # a plain dict: an OrderedDict hashes while it is read
        self._lock = threading.RLock()  # reentrant: a signal's handler may run inside
        tell_in_child(self)

    def explain(self, variant: Variant) -> tuple[str, ...]:
        """Why `variant` is cold; from now on it is a variant seen."""
        new = _Seen(variant)
        with self._lock:
            known = self._kernels.pop(variant.kernel, {})
            self._kernels[variant.kernel] = known
            before = known.pop(variant, None)
            new.made_before = before is not None and before.exists
            latest_first = () if before is not None else tuple(v for v in reversed(known.values()) if v.exists)
            known[variant] = new
            if len(known) > self._max_variants:
                del known[next(iter(known))]
            if len(self._kernels) > self._max_kernels:
                del self._kernels[next(iter(self._kernels))]
        if before is not None:
            return (RAISED_BEFORE if before.raised else SAME_VARIANT,)
        return _reasons(new, latest_first)

    def raised(self, variant: Variant) -> None:
        """`variant`, explained last, could not be made: nothing of it was kept."""
        with self._lock:
            seen = self._kernels.get(variant.kernel, {}).get(variant)
            if seen is not None:
                seen.raised = True

    def after_fork(self) -> None:
        """For a forked child, whose copy of the lock may be held by a thread that it does not have."""
        self._lock = threading.RLock()


def _reasons(new: _Seen, latest_first: Iterable[_Seen]) -> tuple[str, ...]:
    nearest: _Seen | None = None
    fewest = 0
    for old in latest_first:
        if fewest == 1 and old.names == new.names:
            continue  # no nearer: the same names with the same classes would have been the same variant
        distance = new.distance(old)
        if distance == 0:
            return (SAME_VARIANT,)
        if nearest is None or distance < fewest:
            nearest, fewest = old, distance
    if nearest is None:
        return (NEW_KERNEL,)
    names = (*new.names, *(name for name in nearest.names if name not in new.classes))
    lines = [
        _line(name, before, after)
        for name in names
        if (before := nearest.classes.get(name)) != (after := new.classes.get(name))
    ]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
    return tuple(lines)


def _line(name: str, before: ArgClass | None, after: ArgClass | None) -> str:
    constant = {_CONSTEXPR} == {c.type for c in (before, after) if c is not None}
    old, new = _words(before, after)
    return f"{_CONSTEXPR + ' ' if constant else ''}{name}: {_short(old)} -> {_short(new)}"


def _words(before: ArgClass | None, after: ArgClass | None) -> tuple[str, str]:
    """The two sides of the arrow, saying no more than what changed."""
    if before is None or after is None:
        return _full(before), _full(after)
    if before.type == after.type:
        return before.value, after.value
    if before.value == after.value:
        if before.type.startswith("*") and after.type.startswith("*"):
            return before.type[1:], after.type[1:]
        return before.type or before.value, after.type or after.value
    if "==1" in (before.value, after.value) and _is_integer(before) and _is_integer(after):
        return before.value, after.value  # Triton makes an integer 1 a constant, which has no type of its own
    return _full(before), _full(after)


def _full(c: ArgClass | None) -> str:
    if c is None:
        return "absent"
    if c.type in (_CONSTEXPR, _OPTION) or not c.type:
        return c.value
    if c.type.startswith(("fp", "bf", "u1")):
        return c.type  # floats and bools are specialised by type alone
    return f"{c.type} {c.value}".rstrip()


def _is_integer(c: ArgClass) -> bool:
    return c.value in _SCALAR_VALUES and (not c.type or (c.type[0] in "iu" and c.type != "u1"))


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= MAX_VALUE:
        return text
    return f"{text[: MAX_VALUE - 9]}~{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
