"""Names of spans and attributes: a small convention beside OpenTelemetry's ``gen_ai.*``. They are API.

docs/tracing.md tells of each one, and is held to this file by a test. Durations are seconds, as floats; a span's own
start and end are exact nanoseconds.
"""

from __future__ import annotations

SCOPE = "tritonprobe"

# Spans
COLD_CALL = "cold_call"  # and the kernel's short name
PHASE = "phase"  # and the phase's name
STALL = "stall"
FALLBACK = "fallback"  # and the op's short name
REQUEST = "tritonprobe.request"
LAUNCH = "launch"  # and the kernel's short name
PREWARM = "prewarm"

# Of cold calls, and of the stalls that lead to them
KERNEL = "tritonprobe.kernel"
BUCKET = "tritonprobe.bucket"
TIER = "tritonprobe.tier"
MODE = "tritonprobe.mode"
KIND = "tritonprobe.kind"
REASONS = "tritonprobe.reasons"
BACKGROUND = "tritonprobe.background"
AFTER_READY = "tritonprobe.after_ready"
RANK = "tritonprobe.rank"
WAITING = "tritonprobe.waiting"

# Of launches, beside kernel and bucket
GPU_QUEUE = "tritonprobe.gpu_queue"

# Of their phases
PHASE_NAME = "tritonprobe.phase"
TUNING_KEY = "tritonprobe.autotune.key"
TUNING_TRIALS = "tritonprobe.autotune.trials"
TUNING_PRUNED = "tritonprobe.autotune.pruned"
TUNING_WINNER = "tritonprobe.autotune.winner"
TUNING_FROM_DISK = "tritonprobe.autotune.from_disk"

# Of fallbacks
OP = "tritonprobe.op"
REASON = "tritonprobe.reason"

# Of prewarming
PREWARM_PLANNED = "tritonprobe.prewarm.planned"
PREWARM_REPLAYED = "tritonprobe.prewarm.replayed"
PREWARM_THERE = "tritonprobe.prewarm.there_before"
PREWARM_SKIPPED = "tritonprobe.prewarm.skipped"
PREWARM_COVERAGE = "tritonprobe.prewarm.coverage"
PREWARM_STOPPED = "tritonprobe.prewarm.stopped"

# Of requests
REQUEST_ID = "tritonprobe.request.id"
TTFT = "tritonprobe.time_to_first_token"
TPOT = "tritonprobe.time_per_output_token"
PIPELINED = "tritonprobe.pipelined"
EXPOSURE = "tritonprobe.exposure"  # .before_first_token.in_batch, ...; .phase.NAME
PART = "tritonprobe.part"  # .queue, ...

# OpenTelemetry's own
ERROR_TYPE = "error.type"
MODEL = "gen_ai.request.model"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
