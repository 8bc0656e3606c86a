"""``tritonprobe census``: show, merge and compare censuses. Reads and writes files; the format is `shapes.census`'s."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tritonprobe.cli.group import BadInput, Complaint, say, say_json
from tritonprobe.plain import plain
from tritonprobe.shapes.census import Census, CensusError, Entry, diff, merge
from tritonprobe.wording import counted, cut, short_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tritonprobe.shapes.census import Tuned

_FILE = click.Path(path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
MOST = 50
"""Rows of a table."""


@click.group()
def census() -> None:
    """Show, merge and compare censuses: what was launched, how often and how cold."""


def load(path: Path) -> Census:
    """Raises BadInput."""
    try:
        return Census.load(path)
    except CensusError as error:
        raise BadInput(str(error)) from None


@census.command()
@click.argument("path", metavar="FILE", type=_FILE)
@_json
def show(path: Path, as_json: bool) -> None:
    """What is in a census: kernels, variants, launches and what was cold."""
    found = load(path)
    rows = sorted(_rows(found), key=lambda row: (-row["cold_seconds"], row["kernel"]))
    if as_json:
        say_json({**_totals(found), "kernels": rows})
        return
    for line in _table(rows[:MOST], columns()):
        click.echo(line)
    if len(rows) > MOST:
        say(f"... and {counted(len(rows) - MOST, 'kernel')} more (--json lists all)")
    for environment in found.environments.values():
        say(f"recorded with Triton {environment.triton} on {environment.device}, Python {environment.python}")
    totals = _totals(found)
    winners = counted(totals["winners"], "autotune winner")
    say(f"{counted(totals['variants'], 'variant')}, {winners}, {counted(totals['launches'], 'launch')}")
    for what, count in sorted(found.dropped.items()):
        say(f"left out: {count:,} {what}")


@census.command("merge")
@click.argument("paths", metavar="FILES...", type=_FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=_FILE, required=True, help="Where the merged census goes.", metavar="FILE")
def merge_(paths: tuple[Path, ...], output: Path) -> None:
    """Add censuses up: of processes, of pods, of days. The order does not matter."""
    save(merge(*(load(path) for path in paths)), output)


@census.command("diff")
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@_json
def diff_(before: Path, after: Path, as_json: bool) -> None:
    """What AFTER has that BEFORE has not, and the other way round. Exit code 1 if their variants differ."""
    found = diff(load(before), load(after))
    lists: list[tuple[str, Iterable[Entry | Tuned]]] = [
        ("new", found.new),
        ("gone", found.gone),
        ("new_winners", found.new_tunings),
        ("gone_winners", found.gone_tunings),
    ]
    if as_json:
        moved = [{"kernel": k, "bucket": b, "before": n, "after": m} for (k, b), (n, m) in found.launches.items()]
        say_json({**{n: [_named(e) for e in es] for n, es in lists}, "launches": moved})
    else:
        for name, entries in lists:
            for entry in entries:
                say(f"{'+' if name.startswith('new') else '-'} {_named(entry)}")
        if found.launches:
            say(f"{counted(len(found.launches), 'bucket')} with other launch counts")
        elif found.same_variants:
            say("no difference")
    raise click.exceptions.Exit(0 if found.same_variants else 1)


def save(found: Census, output: Path) -> None:
    """Writes a census and says what is in it. Raises Complaint."""
    try:
        found.save(output)
    except OSError as error:
        raise Complaint(f"{output}: {error.strerror}") from None
    totals = _totals(found)
    say(f"{output}: {counted(totals['variants'], 'variant')}, {counted(totals['launches'], 'launch')}", err=True)


def _named(entry: Entry | Tuned) -> str:
    if isinstance(entry, Entry):
        return f"{entry.kernel} {entry.hash[:12]} ({', '.join(f'{n}: {c}' for n, c in entry.classes)})"
    return f"{entry.kernel} {entry.key}: {json.loads(entry.winner)}"


def _totals(found: Census) -> dict[str, Any]:
    return {
        "variants": len(found.entries),
        "winners": len(found.tunings),
        "launches": sum(found.launches.values()),
        "dropped": dict(found.dropped),
    }


def columns() -> int | None:
    """Of the terminal that we write to; None if it is none, which has room for whatever is written."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _table(rows: Sequence[dict[str, Any]], width: int | None) -> Iterator[str]:
    """A line a kernel, whose name gives way where the terminal is narrow: to its last part, then to an ellipsis."""
    heads = ["kernel", "variants", "buckets", "launches", "cold calls", "cold s"]
    cells = [heads]
    for row in rows:
        numbers = (row["variants"], row["buckets"], row["launches"], row["cold_calls"])
        cells.append([plain(row["kernel"]), *(f"{number:,}" for number in numbers), f"{row['cold_seconds']:,.2f}"])
    longest, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    room = longest if width is None else max(len(heads[0]), width - sum(2 + each for each in widths))
    short = short_names(line[0] for line in cells) if longest > room else {}
    names = [cut(short.get(line[0], line[0]), room) for line in cells]
    left = max(map(len, names))
    for name, (_, *line) in zip(names, cells, strict=True):
        yield "  ".join([name.ljust(left), *(cell.rjust(each) for cell, each in zip(line, widths, strict=True))])


def _rows(found: Census) -> list[dict[str, Any]]:
    variants = Counter(entry.kernel for entry in found.entries.values())
    launches: Counter[str] = Counter()
    buckets: Counter[str] = Counter()
    for (kernel, _), count in found.launches.items():
        launches[kernel] += count
        buckets[kernel] += 1
    calls: Counter[str] = Counter()
    cold: Counter[str] = Counter()
    for entry in found.entries.values():
        calls[entry.kernel] += sum(count for _, count, _ in entry.cold)
        cold[entry.kernel] += sum(ns for _, _, ns in entry.cold)
    for tuned in found.tunings.values():
        calls[tuned.kernel] += tuned.sessions
        cold[tuned.kernel] += tuned.ns
    return [
        {
            "kernel": kernel,
            "variants": variants[kernel],
            "buckets": buckets[kernel],
            "launches": launches[kernel],
            "cold_calls": calls[kernel],
            "cold_seconds": cold[kernel] / 1e9,
        }
        for kernel in sorted({*variants, *launches})
    ]
