"""The board's upper rows: is all well, what did requests feel, and which cold calls were to blame."""

from __future__ import annotations

from grafana.panels import Panel, Target, bars, coloured, heatmap, lines, override, ranking, stat, table
from grafana.queries import INTERVAL, RANGE, TARGET, counted, quantile, ratio, series, total
from tritonprobe.ledger import schema

STALLED = "0.25"
"""Seconds of stall from which a request counts as stalled: an edge of the histogram, and what a person notices."""
BEFORE = 'phase="before_first_token"'
AFTER = 'phase="after_first_token"'

TIER_COLOURS = coloured({"memory": "green", "disk": "blue", "remote": "purple", "compile": "red"})
WAITED_COLOURS = coloured({"stall in its own batch": "orange", "stall while it queued": "red"})

EXPOSURE = (
    "Exposure is the part of a request's life that lay in a stall: an upper bound on its delay, which is why the board "
    "shows its quantiles and never its sum."
)
BORN = "The event that made a series counts, too, which increase() would miss; after a gap in scraping it counts again."


def stalled(window: str, phase: str = BEFORE) -> str:
    """The share of requests that a stall covered for more than `STALLED`, by how they waited."""
    by = ("waited",)
    within = counted(schema.EXPOSURE, by, phase, f'le="{STALLED}"', window=window, part="bucket")
    return "1 - " + ratio(within, counted(schema.EXPOSURE, by, phase, window=window, part="count"))


def stall_quantile(phase: str, waited: str) -> str:
    """P99 of the exposure; absent, rather than interpolated within the lowest bucket, where that many had none."""
    found = quantile(0.99, schema.EXPOSURE, phase, f'waited="{waited}"', window=INTERVAL)
    return f"{found} > {schema.EXPOSURE.bounds[0]}"


def glance() -> list[Panel]:
    """One line of numbers: green, or where to look."""
    probed = f"count({total(schema.AFTER_READY, TARGET, series(schema.AFTER_READY))})"
    memory = counted(schema.LOOKUPS, (), 'tier="memory"', window=RANGE)
    fallback = counted(schema.OP_CALLS, (), 'path="fallback"', window=RANGE)
    return [
        stat(
            "Servers",
            "Processes that tritonprobe is in, and those of them that have called ready(). Cold calls count as "
            "incidents only after ready().",
            Target(f"count({series(schema.READY)}) or 0 * {probed}", "ready"),
            Target(probed, "probed"),
            unit="none",
            empty="none scraped",
            base="blue",
        ),
        stat(
            "Incidents",
            "Cold calls after ready: calls of serving threads that did more than launch, all kernels. "
            "requests waited for it. Red from the first one.",
            Target(counted(schema.AFTER_READY, (), window=RANGE)),
            unit="short",
            empty="none scraped",
            decimals=0,
            steps=[(0.5, "red")],
        ),
        stat(
            "TTFT P99",
            "Time to the first token, over all that the board shows. Yellow from 1 s, red from 2.5 s: edges of the "
            "histogram, to be moved to those of your own objective.",
            Target(quantile(0.99, schema.TTFT, window=RANGE)),
            unit="s",
            empty="no requests",
            steps=[(1, "yellow"), (2.5, "red")],
        ),
        stat(
            "Stalled requests",
            f"At least this share of requests had more than {STALLED} s of stall before their first token (the larger "
            "of in_batch and queued; a request may count in both). Yellow from 1%, the objective of the alerts.",
            Target(f"max({stalled(RANGE)})"),
            unit="percentunit",
            empty="no requests",
            decimals=1,
            steps=[(0.01, "yellow"), (0.06, "red")],
        ),
        stat(
            "Cold call now",
            "Age of the oldest cold call that has not ended. Yellow from 10 s; red from 60 s, when the alert is due.",
            Target(f"max(time() - {series(schema.COLD_IN_PROGRESS)})"),
            unit="s",
            empty="none",
            decimals=0,
            steps=[(10, "yellow"), (60, "red")],
        ),
        stat(
            "In memory",
            "Share of variant lookups that Triton's in-memory cache answered. A warm server is at 100%; below 99% it "
            "still meets new variants.",
            Target(ratio(memory, counted(schema.LOOKUPS, (), window=RANGE))),
            unit="percentunit",
            empty="no launches",
            decimals=2,
            base="red",
            steps=[(0.99, "yellow"), (0.999, "green")],
        ),
        stat(
            "On a fallback",
            "Share of op calls that took the fallback. Yellow from 1%; red from 5%, when the alert is due.",
            Target(ratio(f"({fallback} or vector(0))", counted(schema.OP_CALLS, (), window=RANGE))),
            unit="percentunit",
            empty="no op calls",
            decimals=1,
            steps=[(0.01, "yellow"), (0.05, "red")],
        ),
        stat(
            "Own faults",
            "What went wrong in tritonprobe itself. The served program goes on, but some figures may be missing.",
            Target(counted(schema.ERRORS, (), window=RANGE)),
            unit="short",
            empty="none",
            decimals=0,
            steps=[(0.5, "red")],
        ),
    ]


def requests() -> list[Panel]:
    """What clients felt, and how much of it a stall can account for. Empty unless the server uses request()."""
    waits = (("in_batch", "stall in its own batch"), ("queued", "stall while it queued"))
    return [
        lines(
            "Time to first token, and the stall before it",
            "P99 and P50 of the time to first token, and P99 of the stall in it, apart for requests whose own batch "
            "stalled and those that queued behind another's. Each line is a quantile of its own: they need not be the "
            f"same request. A stall's line is absent where 99% met none. {EXPOSURE}",
            Target(quantile(0.99, schema.TTFT, window=INTERVAL), "P99"),
            Target(quantile(0.5, schema.TTFT, window=INTERVAL), "P50"),
            *(Target(stall_quantile(BEFORE, waited), name) for waited, name in waits),
            unit="s",
            empty="no requests",
            size=(12, 10),
            overrides=[*coloured({"P99": "blue", "P50": "green"}), *WAITED_COLOURS],
        ),
        lines(
            "Requests that met a stall",
            f"Share of requests with more than {STALLED} s of stall before their first token. A request may count in "
            "both lines. Dashed: 1%, the objective of the alerts.",
            Target(stalled(INTERVAL), "{{waited}}"),
            unit="percentunit",
            empty="no requests",
            size=(12, 10),
            steps=[(0.01, "yellow")],
            overrides=coloured({"in_batch": "orange", "queued": "red"}),
        ),
        heatmap(
            "Time to first token, all requests",
            "Every request by its time to first token. A band of its own far above the others is what cold calls look "
            "like.",
            Target(counted(schema.TTFT, ("le",), window=INTERVAL, part="bucket"), "{{le}}"),
            unit="s",
            empty="no requests",
            size=(12, 9),
        ),
        lines(
            "Time per output token, and the stall after the first",
            "P99 and P50 over requests of their mean time between tokens, and P99 of the stall after the first token. "
            f"{EXPOSURE}",
            Target(quantile(0.99, schema.TPOT, window=INTERVAL), "P99"),
            Target(quantile(0.5, schema.TPOT, window=INTERVAL), "P50"),
            *(Target(stall_quantile(AFTER, waited), name) for waited, name in waits),
            unit="s",
            empty="no requests",
            size=(12, 9),
            overrides=[*coloured({"P99": "blue", "P50": "green"}), *WAITED_COLOURS],
        ),
        lines(
            "Where requests spend their time",
            "P99 over requests of each part of a request's life: queue before its first step, execution in its steps, "
            "both outside stalls; exposure in a stall; fallback in ops' fallbacks; remainder between and after its "
            "steps. For each request the five add up; their quantiles do not. Absent unless the server uses step().",
            Target(quantile(0.99, schema.REQUEST_PARTS, window=INTERVAL, by=("portion",)), "{{portion}}"),
            unit="s",
            empty="no steps known",
            size=(12, 9),
            overrides=coloured(
                {"exposure": "red", "queue": "orange", "execution": "green", "fallback": "purple", "remainder": "blue"}
            ),
        ),
        bars(
            "Missed objectives",
            "Requests that missed an objective of TRITONPROBE_TTFT_SLOS. `cold`: they may have met it without the "
            "stall before their first token, so cold calls are to blame; `else`: not even then.",
            *(
                Target(
                    f"{counted(schema.SLO_MISSES, ('slo',), _met(verdict), window=INTERVAL)} > 0",
                    f"{{{{slo}}}} s, {why}",
                )
                for verdict, why in (("true", "cold"), ("false", "else"))
            ),
            unit="short",
            empty="none, or no objective set",
            size=(12, 9),
        ),
    ]


def _met(verdict: str) -> str:
    return f'would_meet_without_cold="{verdict}"'


def cold_calls() -> list[Panel]:
    """When, for how long, and where the time went; then the incidents by kernel, bucket and tier."""
    incident = ("kernel", "bucket", "tier")
    by_kernel = counted(schema.AFTER_READY_BY_KERNEL, incident, window=RANGE)
    by_instance = counted(schema.AFTER_READY_BY_KERNEL, ("instance", *incident), window=RANGE)
    return [
        bars(
            "Cold calls after ready, by tier",
            "Incidents over time, all kernels. These counters exist at 0 from the start, so the first one shows.",
            Target(f"{counted(schema.AFTER_READY, ('tier',), window=INTERVAL)} > 0", "{{tier}}"),
            unit="short",
            empty="none",
            size=(8, 8),
            overrides=TIER_COLOURS,
        ),
        bars(
            "Cold calls by tier",
            "How many, by the dearest tier that each one reached; before and after ready, all kernels. `memory`: the "
            "variant was there, but something else was not, e.g. a module was loaded.",
            Target(f"{counted(schema.COLD_CALL_SECONDS, ('tier',), window=INTERVAL, part='count')} > 0", "{{tier}}"),
            unit="short",
            empty="none",
            size=(8, 8),
            overrides=TIER_COLOURS,
        ),
        lines(
            "Cold call in progress, by rank",
            "Age of the oldest cold call that has not ended, by instance and rank. A line that climbs is a compile "
            "that does not come back; ranks of one engine that wait for it hit the watchdog of their collective. "
            "Dashed: 60 s, when the alert is due. Absent while none is in progress.",
            Target(f"time() - {series(schema.COLD_IN_PROGRESS)}", "{{instance}} rank {{rank}}"),
            unit="s",
            empty="none in progress",
            size=(8, 8),
            steps=[(60, "red")],
        ),
        bars(
            "Cold time by phase",
            f"Where the wall time of cold calls went, in each window of the graph. {BORN}",
            Target(f"{counted(schema.COLD_SECONDS, ('phase',), window=INTERVAL)} > 0", "{{phase}}"),
            unit="s",
            empty="no cold calls",
            size=(12, 9),
            legend="right",
        ),
        ranking(
            "Cold time by kernel",
            f"The ten dearest kernels. {BORN}",
            Target(f"topk(10, {counted(schema.COLD_SECONDS, ('kernel',), window=RANGE)} > 0)", "{{kernel}}"),
            unit="s",
            empty="no cold calls",
            size=(12, 9),
        ),
        table(
            "Incidents: cold calls after ready, by kernel, bucket and tier",
            "What serving threads waited for. Run these shapes before ready(), and the list gets shorter. A click on a "
            f"kernel narrows the board to it. {BORN}",
            Target(f"{by_kernel} > 0", "cold calls"),
            Target(f"count by ({', '.join(incident)}) ({by_instance} > 0)", "instances"),
            labels={label: label for label in incident},
            unit="short",
            empty="none",
            size=(16, 9),
            decimals=0,
            overrides=[override("kernel", links=[only_this_kernel()])],
        ),
        table(
            "How long cold calls take",
            "By the dearest tier that each one reached, before and after ready, all kernels. Quantiles are "
            "interpolated between the edges of the histogram.",
            Target(quantile(0.99, schema.COLD_CALL_SECONDS, window=RANGE, by=("tier",)), "P99"),
            Target(quantile(0.5, schema.COLD_CALL_SECONDS, window=RANGE, by=("tier",)), "P50"),
            Target(f"{counted(schema.COLD_CALL_SECONDS, ('tier',), window=RANGE, part='count')} > 0", "calls"),
            Target(f"{counted(schema.COLD_RAISED, ('tier',), window=RANGE)} > 0", "raised"),
            labels={"tier": "tier"},
            unit="s",
            empty="-",
            size=(8, 9),
            overrides=[override(name, unit="short", decimals=0) for name in ("calls", "raised")],
        ),
    ]


def only_this_kernel() -> dict[str, object]:
    """A link of a table's cell: the same board, time and choices, but only this kernel."""
    kept = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${model:queryparam}"
    return {
        "targetBlank": False,
        "title": "Only this kernel",
        "url": f"/d/tritonprobe-overview?{kept}&var-kernel=${{__value.raw}}",
    }
