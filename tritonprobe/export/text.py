"""A story, or a cold and a warm one side by side, as text: details first, and what clients saw as the last lines.

It is longer than most windows, so what matters most stands where a terminal ends up. Readable at 80 columns and in
plain text: colour only repeats what the words say. Knows the story and rich.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tritonprobe.export import why
from tritonprobe.plain import all_plain
from tritonprobe.story import Pair, Story
from tritonprobe.traffic.latency import Percentiles
from tritonprobe.wording import counted, cut, short_names, unit_of

PIPED_WIDTH = 104
"""Columns when the output is no terminal."""
MAX_WIDTH = 120
CALLS = 6
PAIRS = 10
FALLBACKS = 10
REMEDIES = 4
ABSENT = "-"
COUNTS = ("launches", "compile", "disk", "remote")
"""Columns for a pair; `remote` only where something was found there."""
FOUND = {
    "memory": "found in memory",
    "disk": "loaded from disk",
    "remote": "loaded from the remote cache",
    "compile": "compiled",
}
"""What happened to cold calls that came to an end, by the dearest tier each one reached."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Run:
    """One column of the report: a story under a name, and latencies if somebody else than the server took them too."""

    name: str
    story: Story
    ttft: Percentiles | None = None
    tpot: Percentiles | None = None


def console(file: IO[str] | None = None) -> Console:
    """A console of the width that the report is made for; without colour when it is no terminal.

    A `file` is none, whatever the environment says of the terminal that this process may have.
    """
    is_terminal = None if file is None else False
    found = Console(file=file, force_terminal=is_terminal, highlight=False, markup=False, emoji=False, soft_wrap=False)
    found.width = min(found.width, MAX_WIDTH) if found.is_terminal else PIPED_WIDTH
    return found


def show(runs: Sequence[Run], to: Console, intro: str = "") -> None:
    """Prints the report of one run, or of several that are to be compared, the dearest first.

    `intro` says what was run.
    """
    fit = [replace(run, story=all_plain(run.story)) for run in runs]
    parts = _parts(fit, intro, to.width, ascii_only=to.options.ascii_only)
    if to.is_terminal:
        for part in parts:
            to.print(part)
        return
    with to.capture() as captured:
        for part in parts:
            to.print(part)
    to.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())  # rich fills its columns


def duration(seconds: float | None) -> str:
    """Seconds in the unit that a person would choose; `-` where nothing was measured."""
    if seconds is None:
        return ABSENT
    unit, scale, digits = unit_of(seconds)
    return f"{seconds * scale:.{digits}f} {unit}"


def _parts(runs: Sequence[Run], intro: str, width: int, ascii_only: bool) -> Iterator[RenderableType]:
    first = runs[0]
    story = first.story
    yield Text(f"{story.device}, triton {story.triton or 'unknown'}" + (f": {intro}" if intro else ""), style="bold")
    yield _sentences("measured", story.measured)
    yield _sentences("not measured", story.absent)
    yield Text()
    yield _title("where cold time went")
    yield _phases(runs, width, ascii_only)
    for run in runs:
        yield Text(f"{run.name}: {_calls(run.story)}")
    if story.dearest:
        yield Text()
        yield _title(f"the dearest cold calls ({first.name}); when: seconds {_origin(story)}")
        yield from _dearest(story, width)
        yield Text(why.LEGEND, style="dim")
    if any(run.story.pairs for run in runs):
        yield Text()
        yield _title("launches, and variants that were not in memory")
        yield _pairs(runs, width)
        if len(runs) > 1:
            yield Text("Launches differ between runs: which requests share a batch is a matter of time.", style="dim")
    yield _fallbacks(runs)
    if story.remedies:
        yield Text()
        yield _title(f"what would make it stop ({first.name}); the seconds overlap: do not add them up")
        yield _remedies(story)
    if any(found is not None for run in runs for found in (run.ttft, run.tpot, run.story.ttft, run.story.tpot)):
        yield Text()
        yield _latency(runs)
    for run in runs:
        if run.story.slowest is not None:
            yield Text(f"{run.name}: {run.story.slowest.sentence}", style="bold" if run is first else "")


def _title(text: str) -> Text:
    return Text(text, style="bold cyan")


def _grid(*headers: str, left: int = 1) -> Table:
    """A table without lines; the first `left` columns are text, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for place, header in enumerate(headers):
        table.add_column(header, justify="left" if place < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _sentences(label: str, sentences: Iterable[str]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=12, style="dim")
    table.add_column()
    table.add_row(label, "; ".join(sentences) + ".")
    return table


def _latency(runs: Sequence[Run]) -> Table:
    """The client's latencies where there are some, else what the server saw."""
    seen_by = "client" if all(run.ttft is not None for run in runs) else "server"
    table = _grid(f"as the {seen_by} saw it", "P50", "P95", "P99", "requests")
    for what in ("ttft", "tpot"):
        for run in runs:
            found: Percentiles | None = getattr(run if seen_by == "client" else run.story, what)
            values = (None,) * 3 if found is None else (found.p50, found.p95, found.p99)
            table.add_row(f"{what.upper()}  {run.name}", *map(duration, values), str(found.n if found else 0))
    return table


def _phases(runs: Sequence[Run], width: int, ascii_only: bool) -> Table:
    names = list(dict.fromkeys(p.phase for run in runs for p in run.story.phases))
    table = _grid("phase")
    length = max(8, (width - 16 - 11 * len(runs)) // len(runs) - 2)
    for run in runs:
        table.add_column(run.name, justify="right", no_wrap=True)
        table.add_column(width=length)
    scale = max((p.seconds for run in runs for p in run.story.phases), default=0.0)
    for name in names:
        row: list[RenderableType] = [name]
        for run in runs:
            seconds = next((p.seconds for p in run.story.phases if p.phase == name), None)
            bar = "" if seconds is None else _bar(seconds / scale, length, ascii_only)
            row += [duration(seconds), Text(bar, style="red" if run is runs[0] else "yellow")]
        table.add_row(*row)
    table.add_row("all", *(cell for run in runs for cell in (duration(run.story.cold_seconds), "")), style="bold")
    return table


def _bar(share: float, length: int, ascii_only: bool) -> str:
    """A bar of `share` of `length`; what took time is never without a mark."""
    if ascii_only:
        return "#" * max(1, round(share * length))
    full, eighths = divmod(max(1, round(share * length * 8)), 8)
    return "█" * full + (_EIGHTHS[eighths] if eighths else "")


def _calls(story: Story) -> str:
    calls = counted(story.cold_calls, "cold call")
    after = "" if story.after_ready is None else f", {story.after_ready} after ready"
    found = [f"{done} {FOUND[total.tier]}" for total in story.tiers if (done := total.calls - total.raised) > 0]
    raised = sum(total.raised for total in story.tiers)
    if raised:
        found.append(f"{raised} raised")
    return calls + after + (f"; {', '.join(found)}" if found else "")


def _origin(story: Story) -> str:
    return "from the first cold call" if story.after_ready is None else "from ready"


def _dearest(story: Story, width: int) -> Iterator[Text]:
    """For each call what, where and how long; then why. Names give way to numbers where the screen is narrow."""
    shown = story.dearest[:CALLS]
    short = short_names(call.kernel for call in story.dearest)
    rows = [("when", "kernel", "bucket", "tier", "took", "requests waiting")]
    for call in shown:
        name = short[call.kernel] + ("" if call.mode == "launch" else f" ({call.mode})")
        waiting = ABSENT if call.waiting is None else str(call.waiting)
        rows.append((f"{call.when:+.1f}", name, call.bucket, call.tier, duration(call.seconds), waiting))
    when, kernel, bucket, tier, took, waiting_width = (max(map(len, column)) for column in zip(*rows, strict=True))
    kernel, bucket = _share(width - when - tier - took - waiting_width - 5 * 2, kernel, bucket)
    for place, row in enumerate(rows):
        cells = (
            row[0].rjust(when),
            cut(row[1], kernel).ljust(kernel),
            cut(row[2], bucket).ljust(bucket),
            row[3].ljust(tier),
            row[4].rjust(took),
            row[5].rjust(waiting_width),
        )
        yield Text("  ".join(cells), style="dim" if place == 0 else "")
        if place > 0:
            call = shown[place - 1]
            indent = " " * (when + 2)
            text = why.because(call.because, call.error)
            yield Text(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent), style="dim")


def _share(room: int, kernel: int, bucket: int) -> tuple[int, int]:
    """How many columns a kernel's name and a bucket's get of `room`, if they would like `kernel` and `bucket`."""
    kernel = min(kernel, max(room // 2, room - bucket))
    return kernel, min(bucket, room - kernel)


def _pairs(runs: Sequence[Run], width: int) -> Table:
    """The first run's pairs, in all runs; the last row sums what is not shown."""
    counts = [what for what in COUNTS if what != "remote" or _any_remote(runs)]
    tables = [{(p.kernel, p.bucket): p for p in run.story.pairs} for run in runs]
    shown = list(tables[0])[:PAIRS]
    short = short_names(kernel for kernel, _ in shown)
    rows: list[tuple[str, str, list[str]]] = []
    for key in shown:
        found = ([known[key]] if key in known else [] for known in tables)
        rows.append((short[key[0]], key[1], [cell for pairs in found for cell in _counts(pairs, counts)]))
    rest = [_rest(run.story, shown) for run in runs]
    if any(rest):
        rows.append(("the rest", "", [cell for pairs in rest for cell in _counts(pairs, counts)]))

    table = _grid("kernel", "bucket", left=2)
    for run in runs:
        for what in counts:
            table.add_column(f"{run.name if what == counts[0] else ''}\n{what}", justify="right", no_wrap=True)
    columns = zip(counts * len(runs), *(cells for _, _, cells in rows), strict=True)
    room = width - 2 - sum(2 + max(map(len, column)) for column in columns)
    kernel, bucket = _share(room, max(len(row[0]) for row in rows), max(len(row[1]) for row in rows))
    for name, where, cells in rows:
        table.add_row(cut(name, kernel), cut(where, bucket), *cells)
    return table


def _any_remote(runs: Sequence[Run]) -> bool:
    return any(total.tier == "remote" and total.lookups for run in runs for total in run.story.tiers)


def _rest(story: Story, shown: Iterable[tuple[str, str]]) -> list[Pair]:
    named = set(shown)
    beyond = [] if story.other_pairs is None else [story.other_pairs]
    return [p for p in story.pairs if (p.kernel, p.bucket) not in named] + beyond


def _counts(pairs: Sequence[Pair], counts: Sequence[str]) -> Iterator[str]:
    return (str(sum(getattr(pair, what) for pair in pairs)) for what in counts)


def _fallbacks(runs: Sequence[Run]) -> RenderableType:
    """One a line, a run's most frequent first; what is beyond is summed."""
    lines: list[str] = []
    for run in runs:
        whose = f"{run.name}: " if len(runs) > 1 else ""
        every = [(count, op.op, reason) for op in run.story.ops for reason, count in op.reasons]
        every.sort(key=lambda found: (-found[0], *found[1:]))
        lines += [f"{whose}{op} {count} x {reason}" for count, op, reason in every[:FALLBACKS]]
        if len(every) > FALLBACKS:
            lines.append(f"{whose}{counted(sum(count for count, _, _ in every[FALLBACKS:]), 'other')}")
    table = Table.grid(padding=(0, 2, 0, 0))
    for place, line in enumerate(lines or ["none"]):
        table.add_row("" if place else "fallbacks", line)
    return table


def _remedies(story: Story) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    short = short_names(kernel for remedy in story.remedies for kernel in remedy.kernels)
    for remedy in story.remedies[:REMEDIES]:
        names = [short[kernel] for kernel in remedy.kernels]
        whose = ", ".join(names) if len(names) <= 2 else counted(len(names), "kernel")
        table.add_row(duration(remedy.seconds), f"{whose}: {remedy.text}")
    return table
