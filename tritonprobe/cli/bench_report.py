"""What `tritonprobe bench serve` prints: a table for people, or one JSON document. No network, no measuring."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tritonprobe.plain import plain
from tritonprobe.traffic.latency import Percentiles, Replay, Summary
from tritonprobe.traffic.trace import Trace
from tritonprobe.wording import counted

if TYPE_CHECKING:
    from tritonprobe.traffic.client import Load

LATE_SECONDS = 0.1
"""Requests sent later than this are another load than the trace's, and the table says so."""

_MEASURES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("end to end", "e2e"), ("sent late", "late"))


def print_table(trace: Trace, load: Load, summary: Summary) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    model = "" if load.model is None else f", model {load.model}"
    console.print(f"{plain(trace.source)} at {load.speed:g}x to {plain(load.url + model)}")
    console.print(
        f"{summary.completed:,} of {counted(summary.requests, 'request')} completed in {summary.wall:.1f} s,"
        f" {counted(summary.output_tokens, 'token')}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("P50", "P95", "P99", "max", "n"):
        table.add_column(heading, justify="right")
    for name, field in _MEASURES:
        found: Percentiles | None = getattr(summary, field)
        if found is None:
            table.add_row(name, "-", "-", "-", "-", "0")
        else:
            values = (found.p50, found.p95, found.p99, found.max)
            table.add_row(name, *(duration(value) for value in values), f"{found.n:,}")
    console.print(table)
    for note in notes(trace, load, summary):
        console.print(note)


def notes(trace: Trace, load: Load, summary: Summary) -> list[str]:
    """What a reader of the figures has to know about them, a sentence each."""
    said = []
    examples = dict(summary.examples)
    for kind, count in summary.failed:
        said.append(f"Failed, {kind}: {count:,}" + (f" ({examples[kind]})" if kind in examples else ""))
    if summary.interrupted or summary.not_sent:
        said.append(f"Stopped early. Requests still open: {summary.interrupted:,}; not sent: {summary.not_sent:,}.")
    if summary.late is not None and summary.late.p99 > LATE_SECONDS:
        said.append(
            f"This client could not keep the trace's times (P99 of the delay: {duration(summary.late.p99)});"
            " the load was gentler than the trace. Lower --speed, or give the client a machine of its own."
        )
    if summary.ttft is not None and summary.ttft.n < 100:
        said.append(f"Of {summary.ttft.n} values, the P99 is the largest.")
    if summary.short:
        said.append(f"Answers with fewer tokens than the trace, for the server ended them early: {summary.short:,}.")
    if summary.clipped and load.max_prompt is not None:
        said.append(f"Prompts cut to {counted(load.max_prompt, 'token')}: {summary.clipped:,}.")
    if trace.skipped:
        said.append(f"Bad rows of the trace, left out: {trace.skipped:,}.")
    if trace.reordered:
        said.append(f"Rows of the trace out of time order, sorted: {trace.reordered:,}.")
    return said


def document(trace: Trace, load: Load, replay: Replay, summary: Summary) -> dict[str, Any]:
    """Times are seconds; a figure of which nothing was measured is null."""
    return {
        "trace": {"source": trace.source, "skipped": trace.skipped, "reordered": trace.reordered},
        "load": asdict(load),
        "summary": {**asdict(summary), "failed": dict(summary.failed), "examples": dict(summary.examples)},
        "unit": "seconds",
        "interrupted": replay.interrupted,
        "outcomes": [{**asdict(outcome), "late": outcome.late} for outcome in replay.outcomes],
    }


def duration(seconds: float) -> str:
    """Three digits, in the unit a person would say."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2f} ms"
