"""The board's lower rows: each kernel and op, the start of the servers, and tritonprobe itself."""

from __future__ import annotations

from grafana.panels import Panel, Target, bars, coloured, lines, override, ranking, stat, table
from grafana.queries import INTERVAL, RANGE, counted, quantile, rate, ratio, series, total
from grafana.serving import BORN, TIER_COLOURS, only_this_kernel
from tritonprobe.ledger import schema
from tritonprobe.model import TIERS

PAIR = ("kernel", "bucket")


def launches() -> list[Panel]:
    """What is launched, in which shapes, and where the variants came from."""
    memory = counted(schema.LOOKUPS, PAIR, 'tier="memory"', window=RANGE)
    further = counted(schema.LOOKUPS, ("tier",), 'tier!="memory"', window=INTERVAL)
    return [
        table(
            "Launches and tiers by kernel and bucket",
            "Launches, autotune trials and warm-ups are counted apart; the lookups of all three stand under the tier "
            "that answered. A bucket far from 100% in memory is one whose shapes keep making new variants. Where a "
            f"kernel has no tiers (in the interpreter), they stay empty. {BORN}",
            Target(counted(schema.LAUNCHES, PAIR, window=RANGE), "launches"),
            Target(counted(schema.TRIALS, PAIR, window=RANGE), "trials"),
            Target(counted(schema.WARMUPS, PAIR, window=RANGE), "warm-ups"),
            *(Target(counted(schema.LOOKUPS, PAIR, f'tier="{tier}"', window=RANGE), tier) for tier in TIERS),
            Target(counted(schema.LOOKUPS_FAILED, PAIR, window=RANGE), "failed"),
            Target(ratio(memory, counted(schema.LOOKUPS, PAIR, window=RANGE)), "in memory"),
            labels={label: label for label in PAIR},
            unit="short",
            empty="-",
            size=(24, 10),
            decimals=0,
            overrides=[
                override("kernel", links=[only_this_kernel()]),
                override(
                    "in memory",
                    unit="percentunit",
                    decimals=1,
                    custom__cellOptions={"type": "color-text"},
                    thresholds={
                        "mode": "absolute",
                        "steps": [
                            {"color": "red", "value": None},
                            {"color": "yellow", "value": 0.99},
                            {"color": "green", "value": 0.999},
                        ],
                    },
                ),
            ],
        ),
        lines(
            "Launches by kernel",
            "The ten most launched kernels of each moment.",
            Target(f"topk(10, {rate(schema.LAUNCHES, ('kernel',))})", "{{kernel}}"),
            unit="ops",
            empty="no launches",
            legend="right",
        ),
        lines(
            "Host time of a launch",
            "P50 and P99 of the time inside Triton's launcher, by kernel, sampled in windows of 20 ms. A host that is "
            "too busy to launch shows here before the GPU runs dry.",
            Target(quantile(0.5, schema.LAUNCH_HOST, window=INTERVAL, by=("kernel",)), "P50 {{kernel}}"),
            Target(quantile(0.99, schema.LAUNCH_HOST, window=INTERVAL, by=("kernel",)), "P99 {{kernel}}"),
            unit="s",
            empty="no window yet",
            legend="right",
        ),
        lines(
            "Variants of a kernel",
            "The ten kernels with the most variants in one process. Each variant is a binary that stays loaded; a line "
            "that keeps climbing is an argument that should not be specialised on.",
            Target(f"topk(10, {total(schema.VARIANTS, ('kernel',), series(schema.VARIANTS), 'max')})", "{{kernel}}"),
            unit="short",
            empty="no kernels",
            legend="right",
        ),
        bars(
            "Lookups that memory did not answer, by tier",
            f"New variants, and variants that this process had not loaded yet. {BORN}",
            Target(f"{further} > 0", "{{tier}}"),
            unit="short",
            empty="none",
            size=(8, 8),
            overrides=TIER_COLOURS,
        ),
        table(
            "Recompiles by cause",
            "Compilations for a kernel that had a variant already, by the argument or option that changed; one that "
            f"changed several counts under each. {BORN}",
            Target(f"{counted(schema.RECOMPILES, ('kernel', 'cause'), window=RANGE)} > 0", "recompiles"),
            labels={"kernel": "kernel", "cause": "what changed"},
            unit="short",
            empty="none",
            decimals=0,
            size=(8, 8),
            overrides=[override("kernel", links=[only_this_kernel()])],
        ),
        table(
            "Launches that raised",
            f"By kernel and the exception's type; the caller got the exception unchanged. {BORN}",
            Target(f"{counted(schema.LAUNCH_ERRORS, ('kernel', 'error'), window=RANGE)} > 0", "errors"),
            labels={"kernel": "kernel", "error": "exception"},
            unit="short",
            empty="none",
            decimals=0,
            size=(8, 8),
        ),
    ]


def autotune() -> list[Panel]:
    """What tuning cost, and what became of the configurations."""
    return [
        ranking(
            "Autotune time by kernel",
            f"Wall time of tuning sessions, with what they compiled, loaded and benchmarked. {BORN}",
            Target(f"topk(10, {counted(schema.AUTOTUNE_SECONDS, ('kernel',), window=RANGE)} > 0)", "{{kernel}}"),
            unit="s",
            empty="no tuning",
        ),
        bars(
            "Configurations by outcome",
            "What became of each autotune configuration, all kernels. Many that failed make tuning dear for nothing.",
            Target(f"{counted(schema.AUTOTUNE_CONFIGS, ('outcome',), window=INTERVAL)} > 0", "{{outcome}}"),
            unit="short",
            empty="no tuning",
            overrides=coloured({"ok": "green", "pruned": "blue"}),
        ),
    ]


def ops() -> list[Panel]:
    """Which ops leave the Triton path, how often and why."""
    by_op = counted(schema.OP_CALLS, ("op",), 'path="fallback"', window=INTERVAL)
    why = ("op", "bucket", "reason")
    return [
        lines(
            "Share of calls on the fallback, by op",
            "Only ops that fell back in the window. Dashed: 5%, when the alert is due.",
            Target(ratio(by_op, counted(schema.OP_CALLS, ("op",), window=INTERVAL)), "{{op}}"),
            unit="percentunit",
            empty="no fallbacks",
            steps=[(0.05, "red")],
            size=(6, 9),
        ),
        bars(
            "Fallbacks by reason",
            f"`unsupported_...`: the op's supports() said no. Others: the kernel failed, or a policy decided. {BORN}",
            Target(f"{counted(schema.FALLBACKS, ('reason',), window=INTERVAL)} > 0", "{{reason}}"),
            unit="short",
            empty="no fallbacks",
            size=(6, 9),
        ),
        table(
            "Fallbacks by op, bucket and reason",
            f"The shapes that run on the slow path. {BORN}",
            Target(f"{counted(schema.FALLBACKS, why, window=RANGE)} > 0", "fallbacks"),
            labels={label: label for label in why},
            unit="short",
            empty="none",
            decimals=0,
            size=(12, 9),
        ),
    ]


def itself() -> list[Panel]:
    """How the servers started, what runs there, and whether these figures are whole."""
    facts = ("instance", "version", "triton", "device", "binder")
    return [
        ranking(
            "Cold time before ready, by phase",
            "What the start of a server cost in cold calls: of the chosen instances the longest of each phase. "
            "Frozen at ready.",
            Target(
                f"sort_desc({total(schema.STARTUP_COLD, ('phase',), series(schema.STARTUP_COLD), 'max')})", "{{phase}}"
            ),
            unit="s",
            empty="none",
            size=(8, 8),
        ),
        ranking(
            "First steps of a size, beyond cold calls",
            "Since the processes started: what an engine's first step of so many tokens at most took longer than the "
            "same again, and was no cold call. Kernels of torch and cuBLAS that are loaded late, and the like.",
            Target(
                f"sort_desc({total(schema.FIRST_STEPS, ('tokens',), series(schema.FIRST_STEPS))})", "{{tokens}} tokens"
            ),
            unit="s",
            empty="none",
            size=(8, 8),
        ),
        table(
            "Faults of tritonprobe, by part",
            f"The first of each part is in the program's log, with its traceback. {BORN}",
            Target(f"{counted(schema.ERRORS, ('instance', 'part'), window=RANGE)} > 0", "faults"),
            labels={"instance": "instance", "part": "part"},
            unit="short",
            empty="none",
            decimals=0,
            size=(8, 8),
        ),
        by_instance(
            "Series sent to `other`, by metric",
            "Since the process started: series that the budget turned away. Their events count under `other`.",
            schema.SERIES_DROPPED,
            "metric",
            "series",
            size=(8, 8),
        ),
        stat(
            "Prewarmed",
            "Share of the recorded launches whose variants were there before the first request: of the chosen "
            "instances the smallest. Absent where no census was replayed. Yellow below 99%.",
            Target(f"min({series(schema.PREWARM_COVERAGE)})"),
            unit="percentunit",
            empty="no census",
            decimals=1,
            base="yellow",
            steps=[(0.99, "green")],
            size=(8, 8),
        ),
        by_instance(
            "Censuses, by what came of them",
            "Since the processes started, where `TRITONPROBE_PREWARM` names one: `failed` is in the program's log, "
            "`stopped` is the deadline. None though one is named: nobody called ready.",
            schema.PREWARMS,
            "outcome",
            "processes",
            size=(8, 8),
        ),
        by_instance(
            "Cold calls before ready",
            "Since the processes started: `prewarm` are those that a census brought, `start` are the others.",
            schema.BEFORE_READY,
            "during",
            "calls",
            size=(8, 7),
        ),
        by_instance(
            "Spans not made, by what",
            "Since the process started: OpenTelemetry spans, and links to requests that waited, beyond the bounds of a "
            "burst. What they stand for is counted all the same.",
            schema.SPANS_DROPPED,
            "what",
            "spans",
            size=(8, 7),
        ),
        by_instance(
            "CUDA graphs without GPU times of their own",
            "Since the process started, where TRITONPROBE_GPU_WINDOWS=graphs: captures given up, so that the graphs' "
            "kernels stand under `external`, or in the bucket of another graph that looks the same.",
            schema.CAPTURES_DROPPED,
            "why",
            "captures",
            size=(8, 7),
        ),
        by_instance(
            "What clients sent that cannot be read",
            "Since the process started: `traceparent` headers that are none. Their requests are in no trace of the "
            "client's, and served as all others; no alert asks for these.",
            schema.CLIENT_ERRORS,
            "kind",
            "sent",
            column="what",
            size=(8, 7),
        ),
        table(
            "What runs where",
            "Versions, the device that launches go to, how launches are counted, and when the process became ready.",
            Target(f"1000 * {total(schema.READY, ('instance',), series(schema.READY), 'max')}", "ready since"),
            Target(total(schema.INFO, facts, series(schema.INFO), "max")),
            labels={"instance": "instance", "version": "tritonprobe", **{fact: fact for fact in facts[2:]}},
            unit="short",
            empty="-",
            size=(24, 7),
            decimals=0,
            overrides=[override("ready since", unit="dateTimeAsIso", custom__width=180)],
        ),
    ]


def by_instance(
    title: str,
    text: str,
    metric: schema.Metric,
    label: str,
    what: str,
    *,
    column: str | None = None,
    size: tuple[int, int],
) -> Panel:
    """What each instance has counted since it started, by a label of the metric; `what` is counted."""
    return table(
        title,
        text,
        Target(f"{total(metric, ('instance', label), series(metric))} > 0", what),
        labels={"instance": "instance", label: column or label},
        unit="short",
        empty="none",
        decimals=0,
        size=size,
    )
