"""The frozen types that flow through tritonprobe.

Everything here is data: no Triton, no clock, no lock. Times are integers in nanoseconds. A ``*_ns`` field on the
monotonic clock (``time.monotonic_ns``) orders events of one host; ``unix_ns`` places them on the calendar. What was not
measured is ``None``, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Tier = Literal["memory", "disk", "remote", "compile"]
"""Where a variant was found. Tuning is a phase, never a tier."""
TIERS: tuple[Tier, ...] = get_args(Tier)

Mode = Literal["launch", "trial", "warmup"]
"""What a call of a kernel was for: a user's launch, an autotune trial, or a ``kernel.warmup``."""
MODES: tuple[Mode, ...] = get_args(Mode)

Path = Literal["triton", "fallback"]
"""Which way an op went."""

FallbackReason = Literal[
    "unsupported_shape",
    "unsupported_dtype",
    "unsupported_layout",
    "supports_error",
    "compile_error",
    "out_of_resources",
    "autotune_failed",
    "cold",
    "budget",
    "rare",
    "circuit_open",
]
FALLBACK_REASONS: tuple[FallbackReason, ...] = get_args(FallbackReason)

TrialOutcome = Literal["ok", "out_of_resources", "compile_assertion", "ptxas_error", "error"]
"""What became of one autotune configuration."""
TRIAL_OUTCOMES: tuple[TrialOutcome, ...] = get_args(TrialOutcome)

WindowOutcome = Literal["ok", "idle", "cut", "unsettled", "late", "dropped", "overflow", "taken", "misread", "failed"]
"""What became of a window in which GPU time was looked at."""
WINDOW_OUTCOMES: tuple[WindowOutcome, ...] = get_args(WindowOutcome)

PrewarmOutcome = Literal["done", "stopped", "failed", "no_device"]
"""What came of the settings' census in a process; stopped: by the deadline or Ctrl-C, with a part of it replayed."""
PREWARM_OUTCOMES: tuple[PrewarmOutcome, ...] = get_args(PrewarmOutcome)

OTHER = "other"
"""The label value that takes what a bound turned away, and the phase that takes what no other phase named."""

# Every phase a cold call can spend time in, in the order a reader expects them. Compiler stages are the backend's own
# names (the five of NVIDIA and the two that AMD adds); a stage not listed here is still recorded, under its name.
STAGES: tuple[str, ...] = ("ttir", "ttgir", "llir", "ptx", "cubin", "amdgcn", "hsaco")
PHASES: tuple[str, ...] = (
    "process_init",
    "binder",
    "lookup",
    "frontend",
    *STAGES,
    "cache_read",
    "cache_write",
    "launcher_build",
    "module_load",
    "autotune",
    "first_launch",
    OTHER,
)


@dataclass(frozen=True, slots=True)
class ArgClass:
    """What Triton made of one argument when it chose a variant.

    ``type`` is Triton's own (``*fp16``, ``i32``, ``constexpr``, ``option``); ``value`` is the specialisation in the
    words of the reports: ``%16``, ``==1``, ``unaligned``, ``other``, ``None``, or the constant itself.
    """

    type: str
    value: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialisation of a kernel: the classes that decide which binary is compiled.

    ``args`` maps each argument (or element of a tuple argument, ``s[1]``) to its class, in signature order; ``options``
    maps each compiler option to its value as text.
    """

    kernel: str
    args: tuple[tuple[str, ArgClass], ...]
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One autotune configuration that was tried.

    ``seconds`` is the benchmark's own figure, None where nothing was measured.
    """

    config: str
    outcome: TrialOutcome
    seconds: float | None
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """One tuning session: its trials, how many configurations were pruned, and who won.

    ``wall_ns`` contains what it compiled.
    """

    key: str
    trials: tuple[Trial, ...]
    pruned: int
    winner: str | None
    from_disk: bool
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """`count` variants of a kernel that one cold call looked up, and the tier that answered."""

    kernel: str
    bucket: str
    tier: Tier
    count: int = 1


@dataclass(frozen=True, slots=True)
class ColdCall:
    """A call that did more than launch.

    ``phases`` maps names to nanoseconds of exclusive time and adds up to ``end_ns - start_ns``. ``lookups`` says
    where the variants of this one call were found (an autotuned call looks up many; a kernel launched from another's
    grid or hook keeps its own name there). ``tier`` is the dearest of them, `memory` if none was looked up (a module
    load alone). ``reasons`` says why the call was cold, one line an argument (``n: %16 -> ==1``). ``error`` is the
    exception's type name if the call raised. ``trace`` is the sampled trace and span in which it began, in hex.
    """

    kernel: str
    bucket: str
    tier: Tier
    start_ns: int
    end_ns: int
    unix_ns: int
    phases: tuple[tuple[str, int], ...]
    lookups: tuple[Lookup, ...]
    reasons: tuple[str, ...]
    mode: Mode = "launch"
    kind: str = "triton"
    variant: Variant | None = None
    hash: str | None = None
    tuning: Tuning | None = None
    error: str | None = None
    thread: int = 0
    background: bool = False
    after_ready: bool = False
    trace: tuple[str, str] | None = None

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Exposure:
    """Nanoseconds of a request's life that lay in the stall, in its own steps or while it waited.

    An upper bound on its delay. ``phases`` splits it by the cold calls' phases, as far as those happened in this
    process: a call that the request saw only a part of gives that share of each phase.
    """

    in_batch_ns: int = 0
    queued_ns: int = 0
    phases: tuple[tuple[str, int], ...] = ()

    @property
    def total_ns(self) -> int:
        return self.in_batch_ns + self.queued_ns


@dataclass(frozen=True, slots=True)
class Parts:
    """A request's life in parts that add up to it, in nanoseconds; none of them is in another.

    ``queue_ns`` is what came before its first step, outside stalls. ``execution_ns`` is its steps outside stalls and
    fallbacks. ``exposure_ns`` is what lay in the stall. ``fallback_ns`` is the host's time in ops' fallbacks during its
    steps, outside stalls. ``remainder_ns`` is the rest: between its steps, and after the last one.
    """

    queue_ns: int
    execution_ns: int
    exposure_ns: int
    fallback_ns: int
    remainder_ns: int


@dataclass(frozen=True, slots=True)
class RequestCost:
    """One finished request: when it lived, when tokens came, and how much of its life a stall covered.

    ``before`` and ``after`` split the exposure at the first token; without a first token all of it is ``before``.
    ``parts`` is None if no step of the request is known. ``pipelined``: some of its steps overlapped others, as under
    pipeline parallelism, where a stall may hold up one of them only; the exposure is a wider bound then. ``trace`` is
    the sampled trace and span that it belongs to, in hex.
    """

    id: str
    model: str
    start_ns: int
    first_token_ns: int | None
    end_ns: int
    unix_ns: int
    tokens: int
    before: Exposure = field(default_factory=Exposure)
    after: Exposure = field(default_factory=Exposure)
    error: str | None = None
    trace: tuple[str, str] | None = None
    parts: Parts | None = None
    pipelined: bool = False

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token, or None if none came."""
        return None if self.first_token_ns is None else self.first_token_ns - self.start_ns

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first, or None with fewer than two tokens."""
        if self.first_token_ns is None or self.tokens < 2:
            return None
        return (self.end_ns - self.first_token_ns) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class LaunchError:
    """A launch, warm-up or trial that raised; the exception itself went on to the caller unchanged."""

    kernel: str
    error: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class FellBack:
    """An op's fallback that a traced request waited for: published only while one is live.

    ``trace`` is the sampled trace and span in which it began, in hex.
    """

    op: str
    bucket: str
    reason: FallbackReason
    start_ns: int
    end_ns: int
    unix_ns: int
    trace: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """GPU time of one kernel and bucket, as a window saw it. ``method``: ``cupti`` or ``event`` (an upper bound)."""

    kernel: str
    bucket: str
    method: str
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class GpuLaunch:
    """One launch of a step with traced requests, as a GPU window saw it.

    ``launched_ns`` is when the host began it, ``start_ns`` and ``end_ns`` when the GPU did and was through, all on the
    monotonic clock; ``unix_ns`` is ``start_ns`` by the wall clock. ``traces`` are the requests', in hex.
    """

    kernel: str
    bucket: str
    launched_ns: int
    start_ns: int
    end_ns: int
    unix_ns: int
    traces: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuLaunches:
    """A sample of the launches in a GPU window that traced requests had a part in; ``left_out``: how many more."""

    launches: tuple[GpuLaunch, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class PrewarmEnded:
    """A census was replayed in this process; the cold calls in it were told of one by one.

    ``coverage`` is the share of the census's launches whose variants are there now, None if it has none for this
    device; ``stopped`` says what ended it early. ``trace`` is the sampled trace and span in which it began, in hex.
    """

    start_ns: int
    end_ns: int
    unix_ns: int
    planned: int
    replayed: int
    there_before: int
    skipped: int
    coverage: float | None
    stopped: str | None
    trace: tuple[str, str] | None = None


Event = ColdCall | RequestCost | LaunchError | FellBack | PrewarmEnded | GpuLaunches
