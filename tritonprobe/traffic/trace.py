"""Traces of requests: when each came, how long its prompt was, how many tokens it was answered with.

This module knows two text formats and no network. Which format a file has is decided by its first line, not its name:

* the Azure LLM inference traces: CSV with the columns ``TIMESTAMP,ContextTokens,GeneratedTokens``;
* our own JSON lines: ``{"t": 0.25, "prompt_tokens": 512, "output_tokens": 16}``, with ``t`` in seconds.

Files are read line by line, and lines, counts and rows have upper bounds. Blank lines are passed over. Rows out of time
order are sorted, and counted in `Trace.reordered`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from tritonprobe.files import write_whole
from tritonprobe.wording import counted

MAX_LINE = 64 * 1024  # bytes
MAX_TOKENS = 10_000_000  # in one prompt, or one answer
MAX_ROWS = 5_000_000
MAX_SECONDS = 100_000_000_000  # room for a `t` that counts from 1970

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
JSON_KEYS = ("t", "prompt_tokens", "output_tokens")

_WHOLE = re.compile(r"-?[0-9]{1,12}")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TraceError(ValueError):
    """A trace that cannot be used; the message is one line that names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. ``t`` is in seconds from the trace's first request; ``output_tokens`` may be 0."""

    t: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their times.

    ``skipped`` counts bad rows that were left out, ``reordered`` the rows that stood after a later one in the file.
    """

    rows: tuple[TraceRow, ...]
    skipped: int
    source: str
    reordered: int = 0

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return self.rows[-1].t if self.rows else 0.0


_Line = tuple[int, bytes | None]
"""A line and its number; None stands for one longer than `MAX_LINE`."""

_Read = tuple[int | float, int, int]
"""A row as it stands in the file: its time on the file's own clock, prompt tokens, output tokens."""


@dataclass(frozen=True, slots=True)
class _Format:
    parse: Callable[[str], _Read]
    ticks: int
    """Of the file's clock in a second."""


class _RowError(Exception):
    """What is wrong with one row; the reader adds where."""


def read_trace(path: str | os.PathLike[str], *, skip_bad: bool = False, limit: int | None = None) -> Trace:
    """Reads the trace at `path`, at most the file's first `limit` good rows.

    Raises TraceError on what cannot be used. With `skip_bad`, bad rows are left out and counted instead; a file without
    a single good row, or of an unknown format, is an error all the same.
    """
    source = os.fspath(path)
    read: list[_Read] = []
    skipped = 0
    try:
        with Path(source).open("rb") as file:
            form, lines = _recognise(source, _lines(file))
            for number, line in lines:
                if limit is not None and len(read) >= limit:
                    break
                try:
                    read.append(form.parse(_text(line)))
                except _RowError as bad:
                    if not skip_bad:
                        raise TraceError(f"{source}:{number}: {bad}") from None
                    skipped += 1
                if len(read) > MAX_ROWS:
                    raise TraceError(f"{source}:{number}: more than {MAX_ROWS} rows; read fewer with a limit")
    except OSError as error:
        raise TraceError(f"{source}: cannot be read: {error.strerror or error}") from None
    if not read:
        whole = "its one row cannot" if skipped == 1 else f"none of its {counted(skipped, 'row')} can"
        why = f"{whole} be used" if skipped else "it has no rows"
        raise TraceError(f"{source}: nothing to replay: {why}")
    return _trace(read, form.ticks, skipped, source)


def write_jsonl(rows: Iterable[TraceRow], path: str | os.PathLike[str]) -> None:
    """Writes `rows` as JSON lines to `path`: the whole file or, if anything goes wrong, nothing. Raises TraceError."""
    try:
        write_whole(Path(path), json_lines(rows))
    except OSError as error:
        raise TraceError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from None


def json_lines(rows: Iterable[TraceRow]) -> Iterator[str]:
    """`rows` in our format, one line each, newline included."""
    for row in rows:
        yield json.dumps(dict(zip(JSON_KEYS, (row.t, row.prompt_tokens, row.output_tokens), strict=True))) + "\n"


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """The lines that are not blank."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            yield number, None
            while not line.endswith(b"\n") and (line := file.readline(MAX_LINE)):
                pass
        elif line.strip():
            yield number, line


def _text(line: bytes | None) -> str:
    if line is None:
        raise _RowError(f"a line of more than {MAX_LINE} bytes")
    try:
        return line.decode("utf-8-sig").strip()  # the byte-order mark that spreadsheets write, if there is one
    except UnicodeDecodeError:
        raise _RowError("not UTF-8 text") from None


def _recognise(source: str, lines: Iterator[_Line]) -> tuple[_Format, Iterator[_Line]]:
    """The format that the first line speaks of, and the lines that hold rows."""
    number, first = next(lines, (0, None))
    if number == 0:
        raise TraceError(f"{source}: the file is empty")
    try:
        head = _text(first)
    except _RowError as bad:
        raise TraceError(f"{source}:{number}: not a trace: {bad}") from None
    if head.startswith("{"):
        return _Format(_json_row, 1), chain([(number, first)], lines)
    columns = [column.strip() for column in head.split(",")]
    if all(column in columns for column in AZURE_COLUMNS):
        return _Format(partial(_csv_row, columns), 1_000_000_000), lines
    raise TraceError(
        f"{source}:{number}: not a trace: expected the header {','.join(AZURE_COLUMNS)}"
        f" or a JSON object with {', '.join(JSON_KEYS)}"
    )


def _csv_row(columns: list[str], line: str) -> _Read:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(columns):
        raise _RowError(f"{counted(len(cells), 'column')} where the header has {len(columns)}")
    row = dict(zip(columns, cells, strict=True))
    when, prompt, output = (row[column] for column in AZURE_COLUMNS)
    counts = []
    for column, cell, least in ((AZURE_COLUMNS[1], prompt, 1), (AZURE_COLUMNS[2], output, 0)):
        counts.append(_count(column, int(cell) if _WHOLE.fullmatch(cell) else cell, least))
    return _nanoseconds(when), counts[0], counts[1]


def _nanoseconds(timestamp: str) -> int:
    """Since 1970. By hand: `datetime` keeps six fractional digits, these traces have seven."""
    found = _TIMESTAMP.fullmatch(timestamp)
    if found is None:
        raise _RowError(f"TIMESTAMP={_shown(timestamp)}: expected a time like 2023-11-16 18:17:03.9799600")
    moment, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat(moment + (zone or "+00:00").replace("Z", "+00:00")) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise _RowError(f"TIMESTAMP={_shown(timestamp)}: {error}") from None
    return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _json_row(line: str) -> _Read:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise _RowError(f"bad JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise _RowError(f"bad JSON: {error}") from None
    if not isinstance(row, dict):
        raise _RowError(f"expected a JSON object with {', '.join(JSON_KEYS)}")
    for key in JSON_KEYS:
        if key not in row:
            raise _RowError(f"{key} is missing")
    t = row["t"]
    if type(t) not in (int, float) or not 0 <= t <= MAX_SECONDS:
        raise _RowError(f"t={_shown(t)}: expected seconds, from 0 to {MAX_SECONDS}")
    return t, _count("prompt_tokens", row["prompt_tokens"], 1), _count("output_tokens", row["output_tokens"], 0)


def _count(name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_TOKENS:  # True is an int, but no count
        raise _RowError(f"{name}={_shown(value)}: expected a whole number from {least} to {MAX_TOKENS}")
    return value


def _shown(value: object) -> str:
    """`value` as part of one line, cut where it would fill the screen."""
    text = type(value).__name__ if isinstance(value, dict | list) else json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _trace(read: list[_Read], ticks: int, skipped: int, source: str) -> Trace:
    reordered = sum(later[0] < earlier[0] for earlier, later in pairwise(read))
    read.sort(key=itemgetter(0))
    first = read[0][0]
    rows = tuple(TraceRow((when - first) / ticks, prompt, output) for when, prompt, output in read)
    return Trace(rows, skipped, source, reordered)
