"""The types of a story: plain numbers, and sentences; times in seconds. Knows percentiles and wording, no more."""

from __future__ import annotations

from dataclasses import dataclass

from tritonprobe.traffic.latency import Percentiles
from tritonprobe.wording import unit_of


@dataclass(frozen=True, slots=True)
class TierTotal:
    """Cold calls whose dearest lookup ended in ``tier``, their wall time, and all lookups that ended there.

    A hot launch is a lookup in memory and no cold call; an autotuned call looks up many variants. ``raised`` of the
    calls raised.
    """

    tier: str
    calls: int
    seconds: float
    lookups: int
    raised: int


@dataclass(frozen=True, slots=True)
class PhaseTotal:
    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """The request at the 99th percentile of TTFT.

    ``in_batch`` and ``queued`` are the part of its wait that lay in a stall: an upper bound on what the stall cost it.
    """

    id: str
    ttft: float
    in_batch: float
    queued: float

    @property
    def sentence(self) -> str:
        """What a person says about it."""
        unit, scale, digits = unit_of(self.ttft)
        start = f"the request at P99: TTFT {self.ttft * scale:.{digits}f} {unit}"
        stall = round((self.in_batch + self.queued) * scale, digits)
        if stall <= 0:
            return f"{start}, none of it in a stall"
        own = round(self.in_batch * scale, digits)
        # What was queued is the rest, so that the parts add up as they are printed.
        parts = f"{own:.{digits}f} its own batch, {stall - own:.{digits}f} queued"
        return f"{start}, of which up to {stall:.{digits}f} {unit} in a stall ({parts})"


@dataclass(frozen=True, slots=True)
class DearCall:
    """One of the dearest cold calls.

    ``when`` counts from ready (negative before it), or from the first cold call where nothing was declared ready.
    ``waiting`` is how many requests were alive during it; None for a background thread, which holds nobody up.
    """

    when: float
    kernel: str
    bucket: str
    tier: str
    mode: str
    seconds: float
    waiting: int | None
    because: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel and a bucket: launches, and where the variants of its calls were found."""

    kernel: str
    bucket: str
    launches: int
    memory: int
    disk: int
    remote: int
    compile: int

    @property
    def missed(self) -> int:
        """Lookups that memory didn't answer."""
        return self.disk + self.remote + self.compile


@dataclass(frozen=True, slots=True)
class OpPaths:
    """Calls of an op by path; ``reasons`` are those of its fallbacks, with their counts."""

    op: str
    triton: int
    fallback: int
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would make it stop, the cold seconds it speaks of and whose. Two remedies may speak of the same seconds."""

    text: str
    seconds: float
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a screen shows about one process. ``version`` and ``triton`` are None until a kernel was probed.

    ``after_ready`` is None before the process declared itself ready. ``measured`` and ``absent`` say in sentences what
    this device can and cannot tell. ``other_pairs`` sums the pairs beyond those that ``pairs`` names.
    """

    device: str
    version: str | None
    triton: str | None
    cold_calls: int
    cold_seconds: float
    after_ready: int | None
    tiers: tuple[TierTotal, ...]
    phases: tuple[PhaseTotal, ...]
    ttft: Percentiles | None
    tpot: Percentiles | None
    slowest: SlowRequest | None
    dearest: tuple[DearCall, ...]
    pairs: tuple[Pair, ...]
    other_pairs: Pair | None
    ops: tuple[OpPaths, ...]
    remedies: tuple[Remedy, ...]
    measured: tuple[str, ...]
    absent: tuple[str, ...]
