"""The census: what was launched, how often and how cold. Pure: a format, a merge and a comparison; no Triton, no clock.

A census has one entry a variant (the exact inputs of its compile, and a few calls that needed it), one tuning a winner
that an autotuner chose, launches by kernel and bucket, and the environments that all of it comes from. `merge` is
associative and commutative, so that the censuses of processes, pods and days add up in any order. `census_json` is the
file's format, docs/census.md its description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tritonprobe.files import write_whole

MAX_KEYS = 8
"""In-memory keys, buckets, configurations and calls kept of one variant: the smallest, so that order plays no part."""

MAX_COUNT = (1 << 63) - 1
"""What counts and times add up to at the most, so that every reader of JSON can take them."""

Cold = tuple[tuple[str, int, int], ...]
"""Cold calls by the tier they came to: (tier, how many, nanoseconds without the process's one-time work)."""
Texts = tuple[str, ...]
Trials = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Of a tuner: (configuration, hash of the variant that it launched, grid), in order."""


class CensusError(ValueError):
    """A census that cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True, order=True)
class Environment:
    """What a binary depends on beside its kernel: two entries of different environments are never the same."""

    triton: str
    triton_key: str
    target: str
    ptxas: str
    device: str
    torch: str | None
    python: str
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        return hashlib.sha256(repr(astuple(self)).encode(errors="replace")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant. ``inputs`` and each of ``calls`` are JSON as text, since only the adapter knows what they mean."""

    kernel: str
    hash: str
    environment: str
    module: str
    qualname: str
    source: str  # digest of the kernel's source and of what it calls
    inputs: str
    classes: tuple[tuple[str, str], ...]
    keys: Texts = ()
    buckets: Texts = ()
    configs: Texts = ()  # of autotuners that tried it
    calls: Texts = ()
    cold: Cold = ()
    launched: bool = True  # False: it was met in tuning only
    first_ns: int = 0
    last_ns: int = 0

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.kernel, self.hash, self.environment)

    def merged(self, other: Entry) -> Entry:
        one = min(self, other, key=lambda entry: (entry.module, entry.qualname, entry.source, entry.inputs))
        return replace(
            one,
            classes=min(self.classes, other.classes),
            keys=smallest(self.keys, other.keys),
            buckets=smallest(self.buckets, other.buckets),
            configs=smallest(self.configs, other.configs),
            calls=smallest(self.calls, other.calls),
            cold=_added(self.cold, other.cold),
            launched=self.launched or other.launched,
            first_ns=min(self.first_ns, other.first_ns),
            last_ns=max(self.last_ns, other.last_ns),
        )


@dataclass(frozen=True, slots=True)
class Tuned:
    """What an autotuner chose for one key. ``key``, ``winner`` and ``call`` are JSON as text.

    ``measured``: on a device whose times mean something. ``trials`` are those of ``call``, as far as they ran; none if
    the winner was read from the disk.
    """

    kernel: str
    environment: str
    key: str
    winner: str
    module: str
    qualname: str
    source: str
    call: str
    trials: Trials = ()
    measured: bool = False
    sessions: int = 0
    ns: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.kernel, self.environment, self.key, self.winner)

    def merged(self, other: Tuned) -> Tuned:
        one = min(self, other, key=lambda t: (t.module, t.qualname, t.source, not t.trials, t.call, t.trials))
        return replace(
            one,
            measured=self.measured or other.measured,
            sessions=_sum(self.sessions, other.sessions),
            ns=_sum(self.ns, other.ns),
            first_ns=min(self.first_ns, other.first_ns),
            last_ns=max(self.last_ns, other.last_ns),
        )


@dataclass(frozen=True, slots=True)
class Census:
    environments: Mapping[str, Environment] = field(default_factory=dict)
    entries: Mapping[tuple[str, ...], Entry] = field(default_factory=dict)
    tunings: Mapping[tuple[str, ...], Tuned] = field(default_factory=dict)
    launches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Launches by kernel and bucket."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What a bound turned away, or could not be written down, by what it was."""

    @property
    def is_of_nothing(self) -> bool:
        """Whether nothing was launched or tuned: environments, and what was turned away, alone are worth no file."""
        return not (self.entries or self.tunings or self.launches)

    @classmethod
    def of(
        cls,
        environments: Iterable[Environment] = (),
        entries: Iterable[Entry] = (),
        tunings: Iterable[Tuned] = (),
        launches: Mapping[tuple[str, str], int] | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> Census:
        return cls(
            _gathered((e.id, e) for e in environments),
            _gathered((e.identity, e) for e in entries),
            _gathered((t.identity, t) for t in tunings),
            {key: n for key, n in (launches or {}).items() if n},
            {key: n for key, n in (dropped or {}).items() if n},
        )

    @classmethod
    def load(cls, path: str | Path) -> Census:
        """Reads a census. Raises CensusError, with the file's name, if there is none or it cannot be used."""
        from tritonprobe.shapes import census_json

        return census_json.load(Path(path))

    @classmethod
    def parse(cls, text: str | bytes) -> Census:
        """Raises CensusError."""
        from tritonprobe.shapes import census_json

        return census_json.parse(text)

    def text(self) -> str:
        """The census as its file has it."""
        from tritonprobe.shapes import census_json

        return census_json.text(self)

    def save(self, path: str | Path) -> None:
        """Writes the census, whole or not at all. Raises OSError; a file that was there is then what it was."""
        from tritonprobe.shapes import census_json

        write_whole(Path(path), census_json.pieces(self))

    def without(self, unwanted: Callable[[Entry], bool]) -> Census:
        """A copy that has no entry which `unwanted` names."""
        return replace(self, entries={k: e for k, e in self.entries.items() if not unwanted(e)})

    def weights(self, among: Collection[Entry]) -> dict[tuple[str, ...], float]:
        """How many launches each of these entries stands for: in all, every recorded launch of their kernels.

        Launches are not counted by variant, and one that served a bucket need not be new in it. So a bucket's are
        shared equally by the entries that were met first in it and, where none was, by all of its kernel.
        """
        found = {entry.identity: 0.0 for entry in among}
        met: dict[tuple[str, str], list[Entry]] = {}
        of_kernel: dict[str, list[Entry]] = {}
        for entry in among:
            of_kernel.setdefault(entry.kernel, []).append(entry)
            for bucket in entry.buckets:
                met.setdefault((entry.kernel, bucket), []).append(entry)
        met_nowhere: dict[str, int] = {}
        for (kernel, bucket), n in self.launches.items():
            if (kernel, bucket) not in met:
                met_nowhere[kernel] = met_nowhere.get(kernel, 0) + n
        shares = [(self.launches.get(place, 0), entries) for place, entries in met.items()]
        shares += [(met_nowhere.get(kernel, 0), entries) for kernel, entries in of_kernel.items()]
        for n, entries in shares:
            for entry in entries:
                found[entry.identity] += n / len(entries)
        return found


def merge(*censuses: Census) -> Census:
    """All of them together. Whatever the order and the grouping, the result is the same."""
    launches: dict[tuple[str, str], int] = {}
    dropped: dict[str, int] = {}
    for census in censuses:
        for place, n in census.launches.items():
            launches[place] = _sum(launches.get(place, 0), n)
        for what, n in census.dropped.items():
            dropped[what] = _sum(dropped.get(what, 0), n)
    return Census(
        _gathered((k, e) for census in censuses for k, e in census.environments.items()),
        _gathered((k, e) for census in censuses for k, e in census.entries.items()),
        _gathered((k, t) for census in censuses for k, t in census.tunings.items()),
        launches,
        dropped,
    )


def with_winners(census: Census, chosen: Census) -> Census:
    """`census` with the winners of another: those that were measured there take the place of what is known of a key."""
    new = {t.identity: t for t in chosen.tunings.values() if t.measured}
    places = {(t.kernel, t.key) for t in new.values()}
    kept = {k: t for k, t in census.tunings.items() if (t.kernel, t.key) not in places}
    return replace(census, environments={**census.environments, **chosen.environments}, tunings={**kept, **new})


@dataclass(frozen=True, slots=True)
class Difference:
    """What the second of two censuses has that the first has not, and the other way round."""

    new: tuple[Entry, ...]
    gone: tuple[Entry, ...]
    new_tunings: tuple[Tuned, ...]
    gone_tunings: tuple[Tuned, ...]
    launches: Mapping[tuple[str, str], tuple[int, int]]

    @property
    def same_variants(self) -> bool:
        return not (self.new or self.gone or self.new_tunings or self.gone_tunings)


def diff(before: Census, after: Census) -> Difference:
    places = sorted(before.launches.keys() | after.launches.keys())
    counts = {p: (before.launches.get(p, 0), after.launches.get(p, 0)) for p in places}
    return Difference(
        tuple(e for k, e in sorted(after.entries.items()) if k not in before.entries),
        tuple(e for k, e in sorted(before.entries.items()) if k not in after.entries),
        tuple(t for k, t in sorted(after.tunings.items()) if k not in before.tunings),
        tuple(t for k, t in sorted(before.tunings.items()) if k not in after.tunings),
        {place: pair for place, pair in counts.items() if pair[0] != pair[1]},
    )


K = TypeVar("K")
V = TypeVar("V", Environment, Entry, Tuned)


def _gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    found: dict[K, V] = {}
    for key, value in pairs:
        known = found.get(key)
        if known is None:
            found[key] = value
        elif not isinstance(known, Environment):  # of one id they are equal
            found[key] = known.merged(value)
    return found


def smallest(one: Texts, other: Texts) -> Texts:
    """The first `MAX_KEYS` of both: which ones does not depend on the order in which they came."""
    return tuple(sorted({*one, *other})[:MAX_KEYS])


def _added(one: Cold, other: Cold) -> Cold:
    total: dict[str, tuple[int, int]] = {}
    for tier, count, ns in (*one, *other):
        before = total.get(tier, (0, 0))
        total[tier] = (_sum(before[0], count), _sum(before[1], ns))
    return tuple((tier, *total[tier]) for tier in sorted(total))


def _sum(one: int, other: int) -> int:
    return min(MAX_COUNT, one + other)
