"""One row a metric: the only place where a metric's name, unit, help, labels and bounds are written.

Registration, creation at zero, the exporters and the documentation page all read this table. Names are API: changing
one, or a bound, breaks dashboards. Names here carry no prefix; exporters add `PREFIX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from tritonprobe.model import PREWARM_OUTCOMES, TIERS, TRIAL_OUTCOMES

PREFIX = "tritonprobe_"

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]
"""A summary is count and sum, without quantiles: kept as a histogram with no bound."""
DISTRIBUTIONS: tuple[Kind, ...] = ("histogram", "summary")
Merge = Literal["sum", "max", "min"]
"""How a gauge of several processes becomes one."""

# Bounds in seconds. 1-2-5 from 1 ms to 100 s, then 200 and 600: real stalls exceed 10 s (a rank's compile has outlasted
# a 600 s watchdog). TTFT takes OpenTelemetry's gen_ai bounds and goes on to 600.
COLD_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 600)
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 300, 600,
)  # fmt: skip
TPOT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)

# Host time of one launch: five bounds a decade and more, from 1 us to 1 ms, then what a busy host can make of it.
LAUNCH_BOUNDS = (
    1e-6, 1.5e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 8e-6, 1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1,
)  # fmt: skip

# GPU time of one kernel: ten bounds a decade up to 10 ms, each at most 1.26 times the one before, so that a kernel that
# became a third slower is in another bucket. R10 of ISO 3, from 0.5 us; then three a decade up to 1 s.
_R10 = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
GPU_BOUNDS = (
    *(round(step * 10.0**decade, 12) for decade in range(-7, -2) for step in _R10 if step * 10.0**decade > 4.5e-7),
    1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1,
)  # fmt: skip
QUEUE_BOUNDS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1, 1)

MODELS = 32
"""Model names told apart: they come from outside and each one costs a whole histogram."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row.

    ``created`` lists the label values that exist at 0 from the start, so that `increase()` sees a first one. ``limit``
    bounds the series of this metric alone, for labels whose values come from outside. ``derived`` says how many more
    series a reader makes of each one.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Merge = "sum"
    created: tuple[tuple[str, ...], ...] = ()
    limit: int | None = None
    derived: int = 0

    @property
    def unit(self) -> str:
        """The base unit that the name ends in, or nothing."""
        return "seconds" if self.name.removesuffix("_total").endswith("_seconds") else ""

    @property
    def slots(self) -> int:
        """Numbers kept for one series: one, or a histogram's buckets (one above every bound) and its sum."""
        return len(self.bounds) + 2 if self.kind in DISTRIBUTIONS else 1

    @property
    def cost(self) -> int:
        """Series that a scrape shows for each set of labels; a histogram's count is one of them."""
        return (self.slots + (self.kind == "histogram") if self.kind in DISTRIBUTIONS else 1) + self.derived


def _enum(*values: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(product(*values))


LAUNCHES = Metric(
    "launches_total",
    "counter",
    "Launch calls of a kernel, empty grids and calls that raised included; trials and warm-ups are counted apart.",
    ("kernel", "bucket"),
    derived=1,  # the `memory` tier of `cache_lookups_total`
)
LAUNCH_ERRORS = Metric("launch_errors_total", "counter", "Launch calls that raised.", ("kernel", "error"))
WARMUPS = Metric("warmups_total", "counter", "Calls of kernel.warmup: compiled, not launched.", ("kernel", "bucket"))
TRIALS = Metric(
    "autotune_trials_total", "counter", "Launches made to benchmark autotune configurations.", ("kernel", "bucket")
)
LOOKUPS = Metric(
    "cache_lookups_total",
    "counter",
    "Variant lookups by the tier that answered; `memory`: launches, trials and warm-ups that went no further.",
    ("kernel", "bucket", "tier"),
)
LOOKUPS_FAILED = Metric(
    "lookups_failed_total",
    "counter",
    "Launches, trials and warm-ups that raised before a variant was found: they are in no tier.",
    ("kernel", "bucket"),
)
COLD_SECONDS = Metric("cold_seconds_total", "counter", "Wall time of cold calls by phase.", ("kernel", "phase", "rank"))
COLD_CALL_SECONDS = Metric(
    "cold_call_seconds",
    "histogram",
    "Wall time of cold calls, by the dearest tier each one reached.",
    ("tier",),
    bounds=COLD_BOUNDS,
    created=_enum(TIERS),
)
COLD_RAISED = Metric(
    "cold_calls_raised_total",
    "counter",
    "Cold calls that raised, by the dearest tier each one reached; they are in `cold_call_seconds` as well.",
    ("tier",),
    created=_enum(TIERS),
)
COLD_IN_PROGRESS = Metric(
    "cold_call_start_timestamp_seconds",
    "gauge",
    "When the oldest cold call in progress began, Unix time; absent while none is.",
    ("rank",),
    merge="min",
)
RECOMPILES = Metric(
    "recompiles_total",
    "counter",
    "Compilations for a kernel that had a variant already, by each argument or option that changed.",
    ("kernel", "cause"),
)
VARIANTS = Metric("variants", "gauge", "Variants of a kernel seen by this process.", ("kernel",))
AUTOTUNE_SECONDS = Metric(
    "autotune_seconds_total",
    "counter",
    "Wall time of autotune sessions, with what they compiled, loaded and benchmarked.",
    ("kernel",),
)
AUTOTUNE_CONFIGS = Metric(
    "autotune_configs_total",
    "counter",
    "Autotune configurations tried, by outcome.",
    ("outcome",),
    created=_enum((*TRIAL_OUTCOMES, "pruned")),
)
LAUNCH_HOST = Metric(
    "launch_host_seconds",
    "histogram",
    "Host time inside Triton's launcher for one launch, sampled in short windows.",
    ("kernel",),
    bounds=LAUNCH_BOUNDS,
    limit=64,
)
KERNEL_BUCKET_SECONDS = Metric(
    "kernel_bucket_seconds",
    "summary",
    "GPU time of a kernel, sampled in windows: launches seen (also by replayed graphs) and their time.",
    ("kernel", "bucket", "method"),
)
KERNEL_SECONDS = Metric(
    "kernel_seconds",
    "histogram",
    "GPU time of the kernels and buckets that take the most of it, sampled in windows.",
    ("kernel", "bucket"),
    bounds=GPU_BOUNDS,
    limit=48,
)
QUEUE_SECONDS = Metric(
    "gpu_queue_seconds",
    "histogram",
    "From the launcher's return to the kernel's start on the GPU, sampled in windows.",
    bounds=QUEUE_BOUNDS,
)
GPU_LAUNCHES = Metric(
    "gpu_launches_total",
    "counter",
    "Launches seen in windows: `matched` have their GPU time; the others were given up rather than guessed.",
    ("attribution",),
)
GPU_BUSY = Metric("gpu_busy_seconds_total", "counter", "Time in windows in which a kernel ran.", ("gpu",))
GPU_WATCHED = Metric("gpu_watched_seconds_total", "counter", "Time that windows watched a GPU.", ("gpu",))
GPU_WINDOWS = Metric(
    "gpu_windows_total",
    "counter",
    "Windows in which GPU time was looked at, by what became of them.",
    ("outcome",),
)
GPU_TIMING = Metric("gpu_timing_info", "info", "How GPU time is measured now, and why so.", ("method", "why"))
SELF_SECONDS = Metric(
    "self_seconds_total", "counter", "What tritonprobe itself cost, as far as it can tell, by part.", ("part",)
)
OP_CALLS = Metric("op_calls_total", "counter", "Calls of an op by the path that answered.", ("op", "bucket", "path"))
FALLBACKS = Metric(
    "fallbacks_total", "counter", "Op calls that took the fallback, by reason.", ("op", "bucket", "reason")
)
TTFT = Metric(
    "time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to its first token.",
    ("model",),
    bounds=TTFT_BOUNDS,
    limit=MODELS,
)
TPOT = Metric(
    "time_per_output_token_seconds",
    "histogram",
    "Mean time between a request's output tokens after the first.",
    ("model",),
    bounds=TPOT_BOUNDS,
    limit=MODELS,
)
EXPOSURE = Metric(
    "request_exposure_seconds",
    "histogram",
    "How much of a request's life a stall covered: an upper bound on its delay.",
    ("phase", "waited"),
    bounds=TTFT_BOUNDS,
    created=_enum(("before_first_token", "after_first_token"), ("in_batch", "queued")),
)
REQUEST_PARTS = Metric(
    "request_part_seconds",
    "histogram",
    "A request's life in parts that add up to it, each once for each request whose steps are known.",
    ("portion",),
    bounds=TTFT_BOUNDS,
)
SLO_MISSES = Metric(
    "ttft_slo_misses_total",
    "counter",
    "Requests without a first token by the objective; and whether they may have met it without stalls before it.",
    ("slo", "would_meet_without_cold"),
)
READY = Metric(
    "ready_timestamp_seconds", "gauge", "When the process declared itself ready, Unix time; absent before.", merge="max"
)
STARTUP_COLD = Metric(
    "startup_cold_seconds", "gauge", "Wall time of cold calls before ready, by phase; frozen at ready.", ("phase",)
)
FIRST_STEPS = Metric(
    "step_first_use_seconds_total",
    "counter",
    "What first steps of a size took longer than the same again, beyond cold calls: first uses of other GPU code.",
    ("tokens", "rank"),
)
PREWARMS = Metric(
    "prewarms_total",
    "counter",
    "Processes that were to replay a census before ready, by what came of it.",
    ("outcome",),
    created=_enum(PREWARM_OUTCOMES),
)
PREWARM_COVERAGE = Metric(
    "prewarm_coverage_ratio",
    "gauge",
    "Share of the replayed census's launches whose variants are in memory since; absent without a census.",
    merge="min",
)
BEFORE_READY = Metric(
    "cold_calls_before_ready_total",
    "counter",
    "Cold calls before ready: those of a prewarm, and the others.",
    ("during",),
    created=_enum(("prewarm", "start")),
)
AFTER_READY = Metric(
    "cold_calls_after_ready_total",
    "counter",
    "Cold calls of serving threads after ready, by tier: each is an incident.",
    ("tier",),
    created=_enum(TIERS),
)
AFTER_READY_BY_KERNEL = Metric(
    "cold_calls_after_ready_by_kernel_total",
    "counter",
    "Cold calls after ready by kernel, bucket and tier.",
    ("kernel", "bucket", "tier"),
)
SERIES_DROPPED = Metric(
    "series_dropped_total", "counter", "Series that a bound sent to `other`, by metric.", ("metric",)
)
CAPTURES_DROPPED = Metric(
    "gpu_captures_dropped_total",
    "counter",
    "Captures of CUDA graphs that GPU windows gave up: their kernels are `external`, or in another graph's bucket.",
    ("why",),
)
SPANS_DROPPED = Metric(
    "spans_dropped_total",
    "counter",
    "OpenTelemetry spans, and links of spans to requests that waited, that a bound kept from being made.",
    ("what",),
)
ERRORS = Metric("errors_total", "counter", "Faults of tritonprobe itself and misuse of its API, by part.", ("part",))
CLIENT_ERRORS = Metric(
    "client_errors_total",
    "counter",
    "What the server's clients sent and nobody can read, by kind: `traceparent`, a header of that name.",
    ("kind",),
)
INFO = Metric("info", "info", "Versions and device of the probed process.", ("version", "triton", "device", "binder"))

METRICS: tuple[Metric, ...] = (
    LAUNCHES,
    LAUNCH_ERRORS,
    WARMUPS,
    TRIALS,
    COLD_IN_PROGRESS,  # between launches and lookups: `derive` relies on being read in this order
    LOOKUPS,
    LOOKUPS_FAILED,
    COLD_SECONDS,
    COLD_RAISED,  # before all cold calls, so that no reader finds more of these
    COLD_CALL_SECONDS,
    RECOMPILES,
    VARIANTS,
    AUTOTUNE_SECONDS,
    AUTOTUNE_CONFIGS,
    LAUNCH_HOST,
    KERNEL_BUCKET_SECONDS,
    KERNEL_SECONDS,
    QUEUE_SECONDS,
    GPU_LAUNCHES,
    GPU_BUSY,
    GPU_WATCHED,
    GPU_WINDOWS,
    GPU_TIMING,
    SELF_SECONDS,
    OP_CALLS,
    FALLBACKS,
    TTFT,
    TPOT,
    EXPOSURE,
    REQUEST_PARTS,
    SLO_MISSES,
    READY,
    STARTUP_COLD,
    FIRST_STEPS,
    PREWARMS,
    PREWARM_COVERAGE,
    BEFORE_READY,
    AFTER_READY,
    AFTER_READY_BY_KERNEL,
    SERIES_DROPPED,
    CAPTURES_DROPPED,
    SPANS_DROPPED,
    ERRORS,
    CLIENT_ERRORS,
    INFO,
)
