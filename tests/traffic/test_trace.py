"""What a trace file may look like, and what is said of one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.traffic.trace import (
    MAX_LINE,
    MAX_TOKENS,
    TraceError,
    TraceRow,
    json_lines,
    read_trace,
    write_jsonl,
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319601,3180,8
"""
JSONL = """{"t": 5, "prompt_tokens": 512, "output_tokens": 16}
{"t": 5.25, "prompt_tokens": 1, "output_tokens": 0, "user": "ignored"}
"""


@pytest.fixture
def trace_file(tmp_path: Path):
    def write(content: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_azure_csv(trace_file):
    trace = read_trace(trace_file(AZURE))
    assert trace.rows == (TraceRow(0.0, 4808, 10), TraceRow(0.0520001, 3180, 8))
    assert trace.seconds == 0.0520001
    assert trace.skipped == trace.reordered == 0


def test_json_lines(trace_file):
    trace = read_trace(trace_file(JSONL))
    assert trace.rows == (TraceRow(0.0, 512, 16), TraceRow(0.25, 1, 0))


@pytest.mark.parametrize(("content", "name"), [(AZURE, "trace.jsonl"), (JSONL, "trace.csv")])
def test_the_content_decides_the_format_not_the_name(trace_file, content, name):
    assert len(read_trace(trace_file(content, name)).rows) == 2


@pytest.mark.parametrize(
    "variation",
    [
        AZURE.replace("\n", "\r\n"),
        "\ufeff" + AZURE,
        AZURE.rstrip("\n"),
        AZURE.replace("\n", "\n\n"),
        AZURE.replace(",", " , "),
        AZURE.replace(",4808", "+00:00,4808").replace(",3180", "+00:00,3180"),  # as the traces of 2024 have it
        AZURE.replace("16 18", "16T18"),
    ],
    ids=["crlf", "byte-order mark", "no last newline", "blank lines", "spaces", "zone", "T"],
)
def test_harmless_variations(trace_file, variation):
    assert read_trace(trace_file(variation)).rows == read_trace(trace_file(AZURE)).rows


def test_columns_may_stand_in_any_order_among_others(trace_file):
    path = trace_file("Model,GeneratedTokens,TIMESTAMP,ContextTokens\nm,10,2023-11-16 18:17:03,4808\n")
    assert read_trace(path).rows == (TraceRow(0.0, 4808, 10),)


def test_rows_out_of_time_order_are_sorted_and_counted(trace_file):
    path = trace_file("".join(json_lines([TraceRow(2.0, 1, 1), TraceRow(1.0, 2, 2), TraceRow(3.0, 3, 3)])))
    trace = read_trace(path)
    assert trace.rows == (TraceRow(0.0, 2, 2), TraceRow(1.0, 1, 1), TraceRow(2.0, 3, 3))
    assert trace.reordered == 1


def test_limit_reads_no_further(trace_file):
    path = trace_file(JSONL + "not a row\n")
    assert len(read_trace(path, limit=2).rows) == 2
    with pytest.raises(TraceError):
        read_trace(path, limit=3)


# Each bad row is the third line of a file; the message must name the file, the line and what is wrong.
BAD_CSV = {
    "2023-11-16 18:17:05.0,-1,3": "ContextTokens=-1: expected a whole number from 1",
    "2023-11-16 18:17:05.0,0,3": "ContextTokens=0: expected a whole number from 1",
    "2023-11-16 18:17:05.0,5,-3": "GeneratedTokens=-3: expected a whole number from 0",
    "2023-11-16 18:17:05.0,many,3": 'ContextTokens="many": expected a whole number',
    "2023-11-16 18:17:05.0,5.5,3": 'ContextTokens="5.5": expected a whole number',
    "2023-11-16 18:17:05.0,,3": 'ContextTokens="": expected a whole number',
    f"2023-11-16 18:17:05.0,{MAX_TOKENS + 1},3": f"expected a whole number from 1 to {MAX_TOKENS}",
    f"2023-11-16 18:17:05.0,{'9' * 5000},3": "expected a whole number",
    "2023-11-16 18:17:05.0,5": "2 columns where the header has 3",
    "yesterday,5,3": 'TIMESTAMP="yesterday": expected a time like',
    "2023-13-16 18:17:05.0,5,3": "month must be in 1..12",
    "\u0662\u0660\u0662\u0663-11-16 18:17:05.0,5,3": "expected a time like",
}
BAD_JSON = {
    '{"t": 1, "prompt_tokens": 0, "output_tokens": 3}': "prompt_tokens=0: expected a whole number from 1",
    '{"t": 1, "prompt_tokens": true, "output_tokens": 3}': "prompt_tokens=true: expected a whole number",
    '{"t": 1, "prompt_tokens": "5", "output_tokens": 3}': 'prompt_tokens="5": expected a whole number',
    '{"t": 1, "prompt_tokens": 5, "output_tokens": 3.0}': "output_tokens=3.0: expected a whole number",
    '{"t": 1, "prompt_tokens": 5, "output_tokens": [3]}': "output_tokens=list: expected a whole number",
    '{"t": 1, "prompt_tokens": 5}': "output_tokens is missing",
    '{"t": -1, "prompt_tokens": 5, "output_tokens": 3}': "t=-1: expected seconds",
    '{"t": NaN, "prompt_tokens": 5, "output_tokens": 3}': "t=NaN: expected seconds",
    '{"t": Infinity, "prompt_tokens": 5, "output_tokens": 3}': "t=Infinity: expected seconds",
    '{"t": false, "prompt_tokens": 5, "output_tokens": 3}': "t=false: expected seconds",
    '{"t": 1, "prompt_tokens": 5': "bad JSON at column",
    '{"t": ' + "9" * 5000 + ', "prompt_tokens": 5, "output_tokens": 3}': "bad JSON: ",
    '{"t": ' + "[" * 5000: "bad JSON: ",
    "[1, 5, 3]": "expected a JSON object with t, prompt_tokens, output_tokens",
    "x" * (MAX_LINE + 1): f"a line of more than {MAX_LINE} bytes",
}


@pytest.mark.parametrize(
    ("good", "row", "message"),
    [
        *((AZURE, row, message) for row, message in BAD_CSV.items()),
        *((JSONL, row, message) for row, message in BAD_JSON.items()),
    ],
    ids=lambda value: value[:48],
)
def test_bad_rows_are_named_or_skipped(trace_file, good, row, message):
    first, second, *rest = good.splitlines(keepends=True)
    path = trace_file(first + second + row + "\n" + "".join(rest))
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    said = str(raised.value)
    assert said.startswith(f"{path}:3: ")
    assert message in said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 200

    lenient = read_trace(path, skip_bad=True)
    assert lenient.skipped == 1
    assert lenient.rows == read_trace(trace_file(good, "good")).rows


def test_rows_that_are_not_text(trace_file):
    path = trace_file(AZURE.encode() + b"\xff\xfe,1,1\n")
    with pytest.raises(TraceError, match=":4: not UTF-8 text"):
        read_trace(path)
    assert read_trace(path, skip_bad=True).skipped == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("a,b,c\n1,2,3\n", ":1: not a trace: expected the header TIMESTAMP,ContextTokens,GeneratedTokens or a JSON"),
        (b"\x89PNG\xff\n", ":1: not a trace: not UTF-8 text"),
        (b"\0" * (MAX_LINE * 2), f":1: not a trace: a line of more than {MAX_LINE} bytes"),
        (AZURE.splitlines()[0], "nothing to replay: it has no rows"),
    ],
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_files_without_a_row(trace_file, content, message, skip_bad):
    path = trace_file(content)
    with pytest.raises(TraceError) as raised:
        read_trace(path, skip_bad=skip_bad)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


@pytest.mark.parametrize(("rows", "which"), [(2, "none of its 2 rows can be used"), (1, "its one row cannot be used")])
def test_a_file_of_bad_rows_only(trace_file, rows, which):
    with pytest.raises(TraceError, match=f"nothing to replay: {which}"):
        read_trace(trace_file("{}\n" * rows), skip_bad=True)


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file"), (".", "Is a directory")])
def test_unreadable_files(tmp_path, name, why):
    with pytest.raises(TraceError, match=f"cannot be read: {why}"):
        read_trace(tmp_path / name)


rows = st.lists(
    st.builds(
        TraceRow,
        st.floats(min_value=0, max_value=1e9),
        st.integers(1, MAX_TOKENS),
        st.integers(0, MAX_TOKENS),
    ),
    min_size=1,
    max_size=20,
).map(lambda found: [TraceRow(0.0, 1, 1), *sorted(found, key=lambda row: row.t)])


@given(rows)
def test_what_is_written_is_what_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("round") / "trace.jsonl"
    write_jsonl(rows, path)
    assert read_trace(path).rows == tuple(rows)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20)
)
def test_azure_times_are_exact_to_the_tenth_of_a_microsecond(tmp_path_factory, rows):
    """Ticks of 100 ns, as the traces' clock has them, are written as Azure writes them and read back as seconds."""
    path = tmp_path_factory.mktemp("azure") / "trace.csv"
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for ticks, prompt, output in rows:
            moment = datetime(2023, 11, 16) + timedelta(seconds=ticks // 10**7)  # noqa: DTZ001  Azure's have no zone
            file.write(f"{moment:%Y-%m-%d %H:%M:%S}.{ticks % 10**7:07},{prompt},{output}\n")
    ordered = sorted(rows, key=lambda row: row[0])
    first = ordered[0][0]
    expected = tuple(TraceRow((ticks - first) / 10**7, prompt, output) for ticks, prompt, output in ordered)
    assert read_trace(path).rows == expected


@given(
    st.one_of(
        st.binary(max_size=400),
        st.text(max_size=400).map(lambda text: AZURE.encode() + text.encode()),
        st.text(max_size=400).map(lambda text: JSONL.encode() + text.encode()),
        st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: f'{{"t": {v!r}}}'.encode()),
    ),
    st.booleans(),
)
def test_whatever_a_file_holds_it_is_a_trace_or_a_trace_error(tmp_path_factory, content, skip_bad):
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_bytes(content)
    try:
        trace = read_trace(path, skip_bad=skip_bad)
    except TraceError as error:
        said = str(error)
    else:
        said = f"{path}: a trace"
        assert trace.rows[0].t == 0
        assert all(row.prompt_tokens >= 1 for row in trace.rows)
    assert said.startswith(str(path))
    assert len(said.splitlines()) == 1


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_jsonl([TraceRow(0.0, 1, 1)], path)

    def broken() -> Iterator[TraceRow]:
        yield TraceRow(0.0, 2, 2)
        raise OSError(28, "No space left on device")

    with pytest.raises(TraceError, match=r"trace\.jsonl: cannot be written: No space left on device"):
        write_jsonl(broken(), path)
    assert read_trace(path).rows == (TraceRow(0.0, 1, 1),)
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(TraceError, match="cannot be written: No such file or directory"):
        write_jsonl([TraceRow(0.0, 1, 1)], tmp_path / "missing" / "trace.jsonl")
