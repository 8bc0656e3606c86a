"""What `tritonprobe bench cold` and `bench overhead` print for people. No measuring."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tritonprobe.proving.cold import LEAST_NS, SHARE, Cold, Row, Sample
from tritonprobe.proving.intervals import CONFIDENCE, Interval
from tritonprobe.proving.overhead import ARGUMENTS, MODES, NOISE, PROMISE_RATIO, PROMISE_US, Overhead

WIDTH = 124
LEAST_SHOWN = 0.02
"""Phases shorter than this share of their call are left to the JSON document."""


def print_cold(cold: Cold) -> None:
    console = _console()
    console.print(_made(cold.made))
    table = Table(box=None, pad_edge=False)
    table.add_column("cold call")
    for heading in ("whole call", "worst", "not named", "worst", "of bound", "Triton tells"):
        table.add_column(heading, justify="right")
    for row in cold.rows:
        table.add_row(*_cold_row(row))
    console.print(table)
    console.print()
    for row in cold.rows:
        console.print(f"{row.kind.title}: {_found(row)}; {_phases(row.middle)}")
    console.print()
    for note in cold_notes(cold):
        console.print(note)


def _cold_row(row: Row) -> tuple[str, ...]:
    samples = row.samples
    told = [sample.listener_ns for sample in samples if sample.listener_ns is not None]
    return (
        row.kind.title,
        _ms(median(sample.wall_ns for sample in samples)),
        _ms(max(sample.wall_ns for sample in samples)),
        _ms(median(sample.unnamed_ns for sample in samples)),
        _ms(max(sample.unnamed_ns for sample in samples)),
        f"{row.used:.0%}" + ("" if row.within else " BROKEN"),
        _ms(median(told)) if told else "nothing",
    )


def _found(row: Row) -> str:
    """Where its variants were, and how many binaries that wrote."""
    sample = row.middle
    lookups = ", ".join(f"{count} x {tier}" for tier, count in sample.lookups.items()) or "no lookup"
    return f"{lookups}, cubins written: {sample.cubins}" + ("" if row.counted else " (WRONG)")


def _phases(sample: Sample) -> str:
    shown = sorted(sample.phases.items(), key=lambda item: -item[1])
    said = [f"{phase} {_ms(ns)}" for phase, ns in shown if ns >= LEAST_SHOWN * sample.wall_ns]
    return ", ".join(said) or "no cold call was seen"


def cold_notes(cold: Cold) -> list[str]:
    """What a reader of the table has to know, a sentence each."""
    broken = [row.kind.title for row in cold.rows if not row.within]
    miscounted = [row.kind.title for row in cold.rows if not row.counted]
    bound = f"The bound on what no phase names is {SHARE:.0%} of the caller's time, or {_ms(LEAST_NS)}"
    tier = "The compile tier is the number of binaries written"
    said = [
        f"{bound}. BROKEN: {'; '.join(broken)}." if broken else f"{bound}: it holds in the median of every row.",
        f"{tier}. WRONG: {'; '.join(miscounted)}." if miscounted else f"{tier} in every row.",
        (
            "Triton tells: what its compilation listener was told of the same calls. A process's one-time work is not "
            "in it here, for tritonprobe has that done before; on its own the listener books it as part of a compile."
        ),
    ]
    if cold.compile_only:
        said.append(
            "On the compile-only device no launcher stub is built, no module is loaded and nothing is timed on a GPU: "
            "these rows are shorter than on one."
        )
    return said


def print_overhead(overhead: Overhead) -> None:
    console = _console()
    console.print(_made(overhead.made))
    table = Table(box=None, pad_edge=False)
    table.add_column("hot launch")
    table.add_column("kernel (arguments)")
    for heading in ("alone, us", "difference, us", "ratio", "noise", "pairs"):
        table.add_column(heading, justify="right")
    for result in overhead.results:
        table.add_row(
            result.mode.title,
            f"{result.kernel} ({ARGUMENTS[result.kernel]})",
            f"{median(result.rounds.base):.2f}",
            _interval(result.difference_us, "+.2f"),
            _interval(result.ratio, ".3f"),
            f"{result.noise.farthest_from(1):.1%}" + (" NOISY" if result.noisy else ""),
            str(len(result.rounds.base)),
        )
    console.print(table)
    console.print()
    for note in overhead_notes(overhead):
        console.print(note)


def overhead_notes(overhead: Overhead) -> list[str]:
    """What a reader of the table has to know, a sentence each."""
    said = [f"Medians with their {CONFIDENCE:.0%} intervals. Noise: how far two equal rounds may lie apart."]
    if overhead.inconclusive:
        said.append(
            f"Inconclusive: two equal rounds may differ by more than {NOISE:.0%}. "
            "Measure more pairs, or on a quieter machine."
        )
    promise = f"at most +{PROMISE_US} us and {PROMISE_RATIO} times, at the upper end of the interval"
    if overhead.promise_kept is not None:
        said.append(f"What tritonprobe promises ({promise}) is {'kept' if overhead.promise_kept else 'BROKEN'}.")
    elif not overhead.inconclusive:
        said.append("On the compile-only device launches do nothing: the ratios are higher than on a GPU.")
    if overhead.counting != "native":
        said.append(f"tritonprobe counted by {overhead.counting}, dearer than native: is there a C compiler?")
    said += [f"Not available: {_title(mode)} ({why})." for mode, why in overhead.unavailable.items()]
    return said


def _title(mode: str) -> str:
    return next(known.title for known in MODES if known.name == mode)


def _interval(found: Interval, form: str) -> str:
    return f"{found.median:{form}} [{found.low:{form}}, {found.high:{form}}]"


def _made(made: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{made['device']}; {versions}"


def _ms(ns: float) -> str:
    ms = ns / 1e6
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.2f} ms"


def _console() -> Console:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)  # a pipe has no width, and a narrow table no readers
    return console
