"""Writes docs/metrics.md from the schema table, the only place where metrics are defined.

python docs/generate_metrics.py            writes the page
python docs/generate_metrics.py --check    exit code 1 if the page is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from tritonprobe.ledger.schema import METRICS, PREFIX, Metric
from tritonprobe.model import FALLBACK_REASONS, PHASES, PREWARM_OUTCOMES, TIERS, TRIAL_OUTCOMES, WINDOW_OUTCOMES

PAGE = Path(__file__).with_name("metrics.md")

HEAD = """# Metrics

<!-- Written by docs/generate_metrics.py from tritonprobe/ledger/schema.py; do not edit. -->

`/metrics` serves these families as Prometheus text, or as OpenMetrics to a scraper that asks for it. Names, labels and
histogram bounds are API. A family, or a series, that has nothing to say is absent: unmeasured is never zero. The series
named under "from the start" exist at 0 before anything happened, so that `increase()` sees the first event.

In OpenMetrics, the times to the first token, per output token and of cold calls, and `kernel_seconds`, carry an
exemplar: the `trace_id` and `span_id` of a slow observation of late that was made in, or for, a sampled span
([limits](limits.md#what-is-traced)).
"""

LABELS = {
    "kernel": "`module.qualname` of the `@triton.jit` function",
    "bucket": "a named range of launch shapes, e.g. `M<=1024,N=4096`; `all` where a kernel has no dimensions; of GPU "
    "time also `external`: kernels of others, by their own names",
    "tier": "where a variant was found: " + ", ".join(f"`{t}`" for t in TIERS),
    "phase": "of a cold call: "
    + ", ".join(f"`{p}`" for p in PHASES)
    + ", `inductor_workers`, `first_use`, and the kinds of `cold_call`; of a request: `before_first_token`, "
    "`after_first_token`",
    "portion": "of a request's life: `queue` before its first step and `execution` in its steps, both outside stalls; "
    "`exposure` in a stall; `fallback` in ops' fallbacks, host time; `remainder`, the rest",
    "slo": "one of `TRITONPROBE_TTFT_SLOS`, in seconds; none set, no family",
    "would_meet_without_cold": "`true`: it missed by less than the exposure before its first token, an upper bound",
    "waited": "`in_batch`: the stall lay in the request's own steps; `queued`: it waited for others'",
    "rank": "the process's rank (`TRITONPROBE_RANK`, else `RANK`, else 0)",
    "cause": "the argument or option that changed",
    "outcome": "of an autotune configuration: "
    + ", ".join(f"`{o}`" for o in (*TRIAL_OUTCOMES, "pruned"))
    + "; of a window: "
    + ", ".join(f"`{o}`" for o in WINDOW_OUTCOMES)
    + "; of a census: "
    + ", ".join(f"`{o}`" for o in PREWARM_OUTCOMES),
    "during": "`prewarm`: a census was replayed; `start`: any other cold call before ready",
    "method": "`cupti`: the kernel's own record; `event`: a pair of events, an upper bound for short kernels; `none`",
    "why": "what the method was chosen for, or what keeps GPU time from being measured",
    "attribution": "of a launch seen in a window: `matched`; `ambiguous`: another bucket's launch may have changed "
    "places with it; `misaligned`: a record too few or too many for its kernel and grid; `edge`: as the window was "
    "opened or closed",
    "gpu": "the GPU's number in this process",
    "op": "`module.qualname` of the `@op` function, or the name it was given",
    "path": "`triton` or `fallback`",
    "reason": "of a fallback: "
    + ", ".join(f"`{r}`" for r in FALLBACK_REASONS)
    + "; the last four are reserved: tritonprobe sets none of them yet",
    "error": "the exception's type",
    "model": "as `request(model=...)` said",
    "what": "`span` or `link`; `launch`: launches of traced requests in a GPU window, beyond the sample that has spans",
    "tokens": "scheduled in the step: the size's upper edge, a power of two",
    "kind": "of what a client sent: `traceparent`",
    "metric": "the family whose series were turned away",
    "part": "the part of tritonprobe that failed; three blame callers: `requests` (`request()` or `step()` misused), "
    "`supports` and `bucket` (what `@op` was given raised, or returned what it may not)",
    "version": "of tritonprobe",
    "triton": "the version of Triton",
    "device": "where launches go",
    "binder": "how launches are counted (how-it-works.md)",
}

QUERIES = (
    (
        "Cold calls since the server takes traffic, each an incident",
        "increase(tritonprobe_cold_calls_after_ready_total[5m])",
    ),
    (
        "Which kernel and bucket they were",
        "sum by (kernel, bucket, tier) (increase(tritonprobe_cold_calls_after_ready_by_kernel_total[1h])) > 0",
    ),
    ("Where cold time goes", "sum by (phase) (rate(tritonprobe_cold_seconds_total[5m]))"),
    ("A cold call in progress for more than 10 s", "time() - tritonprobe_cold_call_start_timestamp_seconds > 10"),
    (
        "Share of lookups that memory answered",
        (
            'sum(rate(tritonprobe_cache_lookups_total{tier="memory"}[5m]))'
            " / sum(rate(tritonprobe_cache_lookups_total[5m]))"
        ),
    ),
    (
        "P99 of the time to the first token",
        "histogram_quantile(0.99, sum by (le) (rate(tritonprobe_time_to_first_token_seconds_bucket[5m])))",
    ),
    (
        "Requests that missed an objective and may have met it without cold calls, to alert on",
        'sum by (slo) (increase(tritonprobe_ttft_slo_misses_total{would_meet_without_cold="true"}[10m])) > 0',
    ),
    (
        "Fallbacks by op and reason",
        "sum by (op, reason) (rate(tritonprobe_fallbacks_total[5m])) > 0",
    ),
    (
        "Where the GPU's time goes, by kernel and bucket (of what windows saw)",
        "topk(10, sum by (kernel, bucket) (rate(tritonprobe_kernel_bucket_seconds_sum[5m])))",
    ),
    (
        "Mean GPU time of a kernel and bucket",
        (
            "sum by (kernel, bucket) (rate(tritonprobe_kernel_bucket_seconds_sum[5m]))"
            " / sum by (kernel, bucket) (rate(tritonprobe_kernel_bucket_seconds_count[5m]))"
        ),
    ),
    ("Arguments and options that cause recompiles", "topk(10, sum by (kernel, cause) (tritonprobe_recompiles_total))"),
)


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    parts += [_family(metric) for metric in METRICS]
    parts.append("## Labels\n")
    used = dict.fromkeys(label for metric in METRICS for label in metric.labels)
    parts.append("| label | values |\n|---|---|\n" + "".join(f"| `{name}` | {LABELS[name]} |\n" for name in used))
    parts.append("## Questions, and the queries that answer them\n")
    parts += [f"{question}:\n\n```promql\n{query}\n```\n" for question, query in QUERIES]
    return "\n".join(parts)


def _family(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    lines = [f"## `{PREFIX}{metric.name}`\n", f"{metric.help}\n", f"- {metric.kind}; labels: {labels}"]
    if metric.bounds:
        lines.append(f"- bounds in seconds: {', '.join(f'{bound:g}' for bound in metric.bounds)}")
    if metric.created and metric.labels:
        series = ", ".join(" and ".join(f"`{value}`" for value in values) for values in metric.created)
        lines.append(f"- from the start: {series}")
    if metric.limit is not None:
        lines.append(f"- at most {metric.limit} series; those beyond count under `other`")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate_metrics.py [--check]\n")
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    sys.stderr.write(f"{PAGE.name} is stale; run: python docs/generate_metrics.py\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
