"""Is a cold call accounted for? Each kind of cold call, in a process and a cache as fresh as it says, by two clocks.

One clock is the caller's, around the call; the other is tritonprobe's, in phases. What the phases do not name may be at
most 5% of the caller's time, or one millisecond. Beside them stands what Triton's own compilation listener told of the
same call. And the `compile` tier is held against the binaries that Triton wrote, counted as files.

The measuring itself is in `cold_child`; this module knows no Triton.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tritonprobe.proving.processes import Say, ask, environment

SHARE = 0.05
LEAST_NS = 1_000_000
"""The bound on what no phase names: a share of the caller's time, or this if that is more."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cold call, and the part of the measurement that meets it: a process of its own."""

    name: str
    part: str
    title: str


KINDS = (
    Kind("first_compile", "compile", "first kernel of a process, empty cache"),
    Kind("new_signature", "compile", "second kernel, new signature, empty cache"),
    Kind("other_constexpr", "compile", "same signature, other constexpr"),
    Kind("first_disk", "disk", "first kernel of a process, warm disk cache"),
    Kind("later_disk", "disk", "later kernels, warm disk cache"),
    Kind("tune_compile", "tune", "autotune, 24 matmul configs, nothing compiled"),
    Kind("tune_again", "tune", "autotune, same configs compiled, new M,N,K"),
)
# Each with the cache it starts from. `disk` finds what `compile` of the same repetition left.
PARTS = (("compile", "one"), ("disk", "one"), ("tune", "two"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One cold call of a kind. Times are nanoseconds."""

    wall_ns: int  # the caller's clock
    phases: Mapping[str, int]
    tier: str | None  # None: tritonprobe saw no cold call
    lookups: Mapping[str, int]
    cubins: int  # binaries that appeared in the cache folder
    listener_ns: int | None  # None: Triton's listener was not told of this call
    listener_calls: int

    @property
    def named_ns(self) -> int:
        return sum(ns for phase, ns in self.phases.items() if phase != "other")

    @property
    def unnamed_ns(self) -> int:
        """What no phase has a name for: `other`, and what the caller's clock saw before and after."""
        return self.wall_ns - self.named_ns

    @property
    def bound_ns(self) -> float:
        return max(SHARE * self.wall_ns, LEAST_NS)

    @property
    def used(self) -> float:
        """The part of the bound that the unnamed time takes: above 1 it is broken."""
        return self.unnamed_ns / self.bound_ns

    @property
    def compiles(self) -> int:
        return self.lookups.get("compile", 0)


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of one kind, over all repetitions."""

    kind: Kind
    samples: tuple[Sample, ...]

    @property
    def middle(self) -> Sample:
        """The sample in the middle by the caller's clock (the lower of two): its phases belong together."""
        return sorted(self.samples, key=lambda sample: sample.wall_ns)[(len(self.samples) - 1) // 2]

    @property
    def used(self) -> float:
        return median(sample.used for sample in self.samples)

    @property
    def within(self) -> bool:
        """Whether the bound holds in the median."""
        return self.used <= 1

    @property
    def counted(self) -> bool:
        """Whether the `compile` tier was the number of binaries written, each time."""
        return all(sample.compiles == sample.cubins for sample in self.samples)

    @property
    def good(self) -> bool:
        return self.within and self.counted


@dataclass(frozen=True, slots=True)
class Cold:
    rows: tuple[Row, ...]
    made: Mapping[str, Any]  # versions and device, as `document.described` says them

    @property
    def good(self) -> bool:
        return all(row.good for row in self.rows)

    @property
    def compile_only(self) -> bool:
        return str(self.made["device"]).startswith("compile-only")


def measure(repeat: int, device: str | None, say: Say) -> Cold:
    """Meets each kind of cold call `repeat` times. Raises MeasuringError."""
    found: dict[str, list[Sample]] = {kind.name: [] for kind in KINDS}
    made: Mapping[str, Any] = {}
    for turn in range(1, repeat + 1):
        with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
            for part, cache in PARTS:
                say(f"repetition {turn} of {repeat}: {', '.join(kind.title for kind in KINDS if kind.part == part)}")
                env = environment(Path(folder) / cache, device)
                told = ask("tritonprobe.proving.cold_child", {"part": part}, env, say)
                made = told["made"]
                for name, sample in told["samples"]:
                    found[name].append(Sample(**sample))
    return Cold(tuple(Row(kind, tuple(found[kind.name])) for kind in KINDS), made)


def body(cold: Cold) -> dict[str, Any]:
    """The figures as JSON has them: milliseconds, and each sample with all that was seen of it."""
    return {
        "bound": {"share": SHARE, "least_ms": LEAST_NS / 1e6},
        "good": cold.good,
        "rows": [
            {
                "name": row.kind.name,
                "title": row.kind.title,
                "within_bound": row.within,
                "compile_tier_equals_cubins": row.counted,
                "wall_ms": _spread([sample.wall_ns / 1e6 for sample in row.samples]),
                "unnamed_ms": _spread([sample.unnamed_ns / 1e6 for sample in row.samples]),
                "of_bound": _spread([sample.used for sample in row.samples]),
                "samples": [_sample(sample) for sample in row.samples],
            }
            for row in cold.rows
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "worst": max(values)}


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "wall_ms": sample.wall_ns / 1e6,
        "named_ms": sample.named_ns / 1e6,
        "unnamed_ms": sample.unnamed_ns / 1e6,
        "bound_ms": sample.bound_ns / 1e6,
        "phases_ms": {phase: ns / 1e6 for phase, ns in sample.phases.items()},
        "tier": sample.tier,
        "lookups": dict(sample.lookups),
        "cubins_written": sample.cubins,
        "triton_listener": {
            "calls": sample.listener_calls,
            "total_ms": None if sample.listener_ns is None else sample.listener_ns / 1e6,
        },
    }
