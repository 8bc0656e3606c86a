"""Buckets: names for ranges of launch shapes. Pure: knows integers and names, nothing of Triton or tensors.

A bucket spec gives each dimension (an argument of the kernel) a rule:

===================  ==========================================  ==================================
rule                 ``M`` = 700                                 what each value becomes
===================  ==========================================  ==================================
``"exact"``          ``M=700``                                   itself
``"pow2"``           ``M<=1024``                                 the next power of two; 0 and below: ``M<=0``
``(128, 1024)``      ``M<=1024``, and ``M>1024`` above the last  the first edge that is not below it
===================  ==========================================  ==================================

A name depends on the launch and on the code, never on what was seen before, so that every pod gives the same launch the
same name. Dimensions appear in the order of the spec. One that has no fitting value in a launch (an optional argument
that is None) is left out; without any dimension the bucket is ``all``.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tritonprobe.forks import tell_in_child
from tritonprobe.model import OTHER

ALL = "all"
"""The bucket of a launch without dimensions."""
MAX_NAME = 120
"""Characters in a bucket's name. A longer one is cut and ends in a digest of the whole, so that it stays unique."""

Rule = Literal["exact", "pow2"] | tuple[int, ...]
_WORDS: dict[str, Rule] = {"exact": "exact", "pow2": "pow2"}
_ALLOWED = 'use "exact", "pow2" or ascending whole-number edges such as (128, 1024, 4096)'

# Strides are known by name: `stride_am`, `x_row_stride`, BLAS's `lda`, flash-linear-attention's `s_k_h`. Their values
# can't tell: the row stride of a contiguous matrix is its number of columns, and dropping that would drop N.
_STRIDE = re.compile(r".*stride.*|ld[a-z]{1,2}|s_[a-z]{1,2}_[a-z]", re.IGNORECASE)
# Tile sizes and scheduling constants are the kernel's business, not a shape of the traffic.
_TILE = re.compile(r".*BLOCK.*|(.*_)?GROUP(_.*)?|num_(warps|stages|ctas)", re.IGNORECASE)


class BucketSpecError(ValueError):
    """A bucket spec that cannot be used: one line that names the argument and says what is allowed."""


class UpTo(int):
    """The upper edge of a range; in a bucket's name it reads ``M<=1024`` where a plain number reads ``M=1024``."""

    __slots__ = ()


_POWERS = (*(UpTo(1 << bits) for bits in range(64)), UpTo(0))  # made once; the last is for 0 and below


def pow2(n: int) -> UpTo:
    """`n` rounded up to a power of two; 0 for 0 and below. For the bucket of an op: ``{"M": pow2(a.shape[0])}``."""
    bits = -1 if n <= 0 else (n - 1).bit_length()
    return _POWERS[bits] if bits < len(_POWERS) - 1 else UpTo(1 << bits)


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A rule for each dimension, checked; make one with `parse_spec` or `default_spec`."""

    dims: tuple[tuple[str, Rule], ...] = ()

    def name(self, values: Mapping[str, object]) -> str:
        """The bucket of a launch with these arguments, such as ``M<=1024,N=4096,K=4096``. Never raises on a value."""
        return _join(part for dim, rule in self.dims if (part := _part(dim, rule, values.get(dim))) is not None)


def parse_spec(spec: object, *, params: Sequence[str] | None = None) -> BucketSpec:
    """Checks a user's spec: a mapping of argument names to rules.

    With `params`, the kernel's arguments, an argument the kernel does not have is an error too. Raises BucketSpecError.
    """
    if not isinstance(spec, Mapping):
        raise BucketSpecError(f'bucket={_show(spec)}: expected a mapping such as {{"M": "pow2", "N": "exact"}}')
    dims = []
    for dim, rule in spec.items():
        if not isinstance(dim, str):
            raise BucketSpecError(f"bucket: {_show(dim)} is not the name of an argument")
        if params is not None and dim not in params:
            raise BucketSpecError(f"bucket[{dim!r}]: the kernel has no such argument; it has {', '.join(params)}")
        dims.append((dim, _parse_rule(dim, rule)))
    return BucketSpec(tuple(dims))


def default_dims(
    params: Sequence[str],
    values: Mapping[str, object],
    *,
    autotune_keys: Collection[str] = (),
    constexprs: Collection[str] = (),
) -> tuple[str, ...]:
    """The dimensions of a launch of a kernel for which no spec was given, in the order of the signature.

    They are the autotune key's arguments that are integers; if there are none, every integer argument except strides
    (known by name) and tile sizes (``BLOCK_M``, ``XBLOCK``, ``GROUP_SIZE_M``: known by name, among the constexprs).
    Ask again for each new shape rather than once a kernel: an optional argument may be None in the first launch.
    """
    integers = [name for name in params if _is_integer(values.get(name))]
    keys = tuple(name for name in integers if name in autotune_keys)
    if keys:
        return keys
    return tuple(
        name for name in integers if not _STRIDE.fullmatch(name) and not (name in constexprs and _TILE.fullmatch(name))
    )


def default_spec(
    params: Sequence[str],
    values: Mapping[str, object],
    *,
    autotune_keys: Collection[str] = (),
    constexprs: Collection[str] = (),
) -> BucketSpec:
    """The spec of a launch of a kernel for which none was given: `default_dims`, each with a rule.

    An autotune key is kept exact, since each of its values is a tuning of its own and too dear to be many. Any other
    integer may be a token count with thousands of values, so it takes the next power of two.
    """
    dims = default_dims(params, values, autotune_keys=autotune_keys, constexprs=constexprs)
    return BucketSpec(tuple((name, "exact" if name in autotune_keys else "pow2") for name in dims))


def op_bucket(value: object) -> str:
    """The bucket's name for what an op's ``bucket`` callable returned: text, or dimensions with numbers or text.

    Raises BucketSpecError on anything else. In particular a tensor is never turned into text: that would read it.
    """
    if isinstance(value, str):
        return _join([value] if value else [])
    if not isinstance(value, Mapping):
        raise BucketSpecError(f"an op's bucket must return text or a mapping, not {type(value).__name__}")
    parts = []
    for dim, item in value.items():
        name = number_or_text(dim)
        if name is None:
            raise BucketSpecError(f"an op's bucket must name its dimensions in text, not by a {type(dim).__name__}")
        plain = _item(item)
        if plain is None and item is not None:
            raise BucketSpecError(f"an op's bucket[{name!r}] must be a number or text, not {type(item).__name__}")
        parts.append(f"{name}{'<=' if type(item) is UpTo else '='}{_text(plain)}")
    return _join(parts)


def _item(value: object) -> int | float | str | None:
    if issubclass(type(value), float):
        return float.__float__(value) or 0.0  # type: ignore[arg-type]  # -0.0 equals 0.0: one number, one name
    return number_or_text(value)


def number_or_text(value: object) -> int | str | None:
    """The number or text that `value` is, be it of a subclass such as an enumeration's; None if it is neither.

    By its type, not by what its ``__class__`` says (a proxy's is that of what it stands for), and by none of its own
    methods.
    """
    kind = type(value)
    if issubclass(kind, int):
        return value if kind is bool else int.__index__(value)  # type: ignore[return-value, arg-type]
    return str.__str__(value) if issubclass(kind, str) else None


class BucketMemo:
    """The buckets one kernel may have: the first `limit` names are kept, each further one becomes ``other``.

    ``overflow`` counts the refusals. Safe from any thread.
    """

    __slots__ = ("__weakref__", "_limit", "_lock", "_names", "overflow")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()
        self._lock = threading.RLock()  # reentrant: a signal's handler may run inside
        self.overflow = 0
        tell_in_child(self)

    def admit(self, name: str) -> str:
        """`name`, or ``other`` when the kernel has `limit` other buckets already."""
        if name in self._names or name == OTHER:
            return name
        with self._lock:
            if len(self._names) < self._limit or name in self._names:
                self._names.add(name)
                return name
            self.overflow += 1
            return OTHER

    def after_fork(self) -> None:
        """For a forked child, whose copy of the lock may be held by a thread that it does not have."""
        self._lock = threading.RLock()


def _parse_rule(dim: str, rule: object) -> Rule:
    if isinstance(rule, str):
        if rule in _WORDS:
            return _WORDS[rule]
        raise BucketSpecError(f"bucket[{dim!r}]: unknown word {_show(rule)}; {_ALLOWED}")
    if not isinstance(rule, Sequence):
        raise BucketSpecError(f"bucket[{dim!r}]: cannot use {_show(rule)}; {_ALLOWED}")
    edges = tuple(rule)
    if not edges:
        raise BucketSpecError(f"bucket[{dim!r}]: no edges; {_ALLOWED}")
    for edge in edges:
        if not _is_integer(edge):
            raise BucketSpecError(f"bucket[{dim!r}]: edge {_show(edge)} is not a whole number; {_ALLOWED}")
    for low, high in pairwise(edges):
        if low >= high:
            raise BucketSpecError(f"bucket[{dim!r}]: edge {_text(high)} comes after {_text(low)}; {_ALLOWED}")
    return edges


def _part(dim: str, rule: Rule, value: object) -> str | None:
    """One dimension's part of a name. Only numbers and text are ever shown: the text of a tensor would read it."""
    plain = number_or_text(value)
    if rule == "exact":
        return None if plain is None else f"{dim}={_text(plain)}"
    if not isinstance(plain, int):
        return None
    if rule == "pow2":
        return f"{dim}<={_text(pow2(plain))}"
    at = bisect_left(rule, plain)
    return f"{dim}<={_text(rule[at])}" if at < len(rule) else f"{dim}>{_text(rule[-1])}"


def _join(parts: Iterable[str]) -> str:
    name = ",".join(parts) or ALL
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}~{digest}"


def _is_integer(value: object) -> bool:
    return issubclass(type(value), int) and not isinstance(value, bool)


def _text(value: object) -> str:
    # Python refuses to write integers of thousands of digits in decimal, never in hexadecimal.
    if isinstance(value, int) and value.bit_length() > 128:
        return hex(value)
    return str(value)


def _show(value: object) -> str:
    """A bounded, one-line picture of bad input."""
    return " ".join(reprlib.repr(value).split())
