"""`tritonprobe bench` as its user meets it: what it prints, what it says of bad input, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.traffic.scripted_server import Script
from tritonprobe.cli import main
from tritonprobe.traffic.trace import TraceRow, read_trace, write_jsonl


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_jsonl([TraceRow(0.01 * index, 10 + index, 3) for index in range(5)], path)
    return path


def test_serve_prints_a_table(server, trace):
    done = run("serve", trace, "--url", server.url)
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"{trace} at 1x to {server.url}, model scripted"
    assert lines[1].startswith("5 of 5 requests completed in ")
    assert lines[1].endswith(" s, 15 tokens")
    assert lines[2].split() == ["P50", "P95", "P99", "max", "n"]
    for line, name in zip(lines[3:7], ("TTFT", "TPOT", "end to end", "sent late"), strict=True):
        assert line.startswith(name)
        assert line.split()[-1] == "5"
        assert line.count(" ms") + line.count(" s ") == 4
    assert lines[7:] == ["Of 5 values, the P99 is the largest."]


def test_serve_json_is_one_document(server, trace):
    server.script = lambda body: Script(before_first=0.1)
    done = run(
        "serve", trace, "--url", server.url, "--json", "--speed", 2, "--limit", 3, "--seed", 4, "--max-prompt", 11
    )
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["load"]["speed"] == 2
    assert document["load"]["model"] == "scripted"
    assert document["summary"]["completed"] == 3
    assert document["summary"]["clipped"] == 1
    assert document["summary"]["failed"] == {}
    assert document["summary"]["ttft"]["n"] == 3
    assert 0.1 <= document["summary"]["ttft"]["p50"] < 0.6
    assert [outcome["due"] for outcome in document["outcomes"]] == [0.0, 0.005, 0.01]
    assert [outcome["prompt_tokens"] for outcome in document["outcomes"]] == [10, 11, 11]


def test_a_server_that_names_no_model_is_asked_for_none(server, trace):
    server.models = []
    assert run("serve", trace, "--url", server.url).exit_code == 0
    assert all("model" not in served.body for served in server.served)
    assert run("serve", trace, "--url", server.url, "--model", "mine").exit_code == 0
    assert server.served[-1].body["model"] == "mine"


def test_failed_requests_are_counted_and_make_exit_code_1(server, trace):
    server.script = lambda body: Script(status=503 if len(body["prompt"]) > 12 else 200)
    done = run("serve", trace, "--url", server.url)
    assert done.exit_code == 1
    assert "3 of 5 requests completed" in done.stdout
    assert 'Failed, http 503: 2 ({"error":{"message":"the script says no"}})' in done.stdout
    assert json.loads(run("serve", trace, "--url", server.url, "--json").stdout)["summary"]["failed"] == {"http 503": 2}


def test_nothing_measured_is_not_zero(server, trace):
    server.script = lambda body: Script(status=500)
    done = run("serve", trace, "--url", server.url)
    assert done.exit_code == 1
    assert next(line for line in done.stdout.splitlines() if line.startswith("TTFT")).split() == ["TTFT", *"----", "0"]


def test_what_a_reader_should_know_is_said(server, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_jsonl([TraceRow(1.0, 30, 9), TraceRow(0.0, 30, 9)], path)
    with path.open("a") as file:
        file.write("not a row\n")
    server.script = lambda body: Script(tokens=2)
    done = run("serve", path, "--url", server.url, "--skip-bad", "--max-prompt", 20, "--speed", 20)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-5:] == [
        "Of 2 values, the P99 is the largest.",
        "Answers with fewer tokens than the trace, for the server ended them early: 2.",
        "Prompts cut to 20 tokens: 2.",
        "Bad rows of the trace, left out: 1.",
        "Rows of the trace out of time order, sorted: 1.",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--speed", "0"], "speed=0.0: expected a factor above 0"),
        (["--speed", "nan"], "speed=nan: expected a factor above 0"),
        (["--speed", "fast"], "Invalid value for '--speed'"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--vocab", "1"], "vocab=1: expected a whole number from 2"),
        (["--max-prompt", "0"], "max_prompt=0: expected a number of tokens"),
        (["--timeout", "-1"], "timeout=-1.0: expected seconds"),
        (["--url", "localhost"], "url='localhost': expected http://HOST:PORT"),
    ],
)
def test_bad_settings(server, trace, options, said):
    assert_refused(run("serve", trace, "--url", server.url, *options), said)
    assert server.served == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "trace.jsonl: cannot be read: No such file or directory"),
        ("", "trace.jsonl: the file is empty"),
        ("hello\n", "trace.jsonl:1: not a trace: expected the header"),
        ('{"t": 0, "prompt_tokens": 5, "output_tokens": 1}\n{"t": 1}\n', "trace.jsonl:2: prompt_tokens is missing"),
        ('{"t": 0, "prompt_tokens": -5, "output_tokens": 1}\n', "trace.jsonl:1: prompt_tokens=-5: expected"),
    ],
)
def test_bad_traces(server, tmp_path, content, said):
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content)
    for extra in ([], ["--json"]):
        assert_refused(run("serve", path, "--url", server.url, *extra), said)
    assert server.served == []


def test_no_server(trace):
    assert_refused(run("serve", trace, "--url", "http://127.0.0.1:1"), "http://127.0.0.1:1: no server answers there")


def assert_refused(done: Result, said: str) -> None:
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_without_httpx_the_extra_is_named():
    code = "import sys; sys.modules['httpx'] = None; from tritonprobe.cli import main; main()"
    arguments = [sys.executable, "-c", code, "bench", "serve", "x", "--url", "http://127.0.0.1:1"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: bench serve needs httpx: pip install httpx sniffio\n"


def test_ctrl_c_reports_what_was_measured(server, tmp_path):
    """A real process. When the signal comes, two requests are long answered, one is open and one far in the future."""
    path = tmp_path / "trace.jsonl"
    write_jsonl([TraceRow(0.0, 1, 2), TraceRow(0.0, 2, 2), TraceRow(1.0, 3, 2), TraceRow(900.0, 4, 2)], path)
    server.script = lambda body: Script(before_first=900 if len(body["prompt"]) == 3 else 0)
    command = [sys.executable, "-m", "tritonprobe", "bench", "serve", str(path), "--url", server.url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while len(server.served) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == ""
    document = json.loads(out)
    assert document["interrupted"] is True
    summary = document["summary"]
    assert (summary["completed"], summary["interrupted"], summary["not_sent"], summary["failed"]) == (2, 1, 1, {})


def test_trace_writes_the_same_file_for_the_same_seed(tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for path in (first, second):
        done = run("trace", "--seed", 3, "--requests", 50, "--scale", 0.1, "--rate", 5, "-o", path)
        assert done.exit_code == 0
        assert done.stdout == ""
        assert done.stderr.startswith(f"{path}: 50 requests over ")
    assert first.read_bytes() == second.read_bytes()
    assert len(read_trace(first).rows) == 50
    assert run("trace", "--seed", 3, "--requests", 50, "--scale", 0.1, "--rate", 5).stdout == first.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--requests", "0"], "requests=0: expected a whole number from 1"),
        (["--rate", "0"], "rate=0.0: expected requests a second"),
        (["--scale", "-1"], "scale=-1.0: expected a factor"),
        (["--arrivals", "weekly"], "Invalid value for '--arrivals'"),
    ],
)
def test_trace_refuses_and_writes_nothing(tmp_path, options, said):
    assert_refused(run("trace", "-o", tmp_path / "trace.jsonl", *options), said)
    assert list(tmp_path.iterdir()) == []


def test_trace_to_a_place_that_cannot_be_written(tmp_path):
    assert_refused(run("trace", "-o", tmp_path / "no" / "trace.jsonl"), "cannot be written: No such file or directory")


def test_a_trace_is_written_into_a_pipe_and_through_a_link(tmp_path: Path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "target")
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert run("trace", "--requests", 3, "-o", pipe).exit_code == 0
        read, _ = reader.communicate(timeout=10)
    assert pipe.is_fifo()
    assert run("trace", "--requests", 3, "-o", link).exit_code == 0
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == read != b""


@pytest.mark.parametrize("words", [["bench", "trace", "--requests", "3"], ["bench", "trace", "--help"], ["--version"]])
def test_a_full_disk_behind_standard_output_is_one_line(words: list[str]):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tritonprobe", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr == "Error: standard output cannot be written to: No space left on device\n"
    assert done.returncode == 1


def test_a_name_with_a_newline_stays_on_one_line(tmp_path: Path):
    path = tmp_path / "a\nb"
    done = run("trace", "--requests", 3, "-o", path)
    assert done.stderr.startswith(f"{tmp_path}/a\\nb: 3 requests over ")
    assert path.exists()
    done = run("trace", "--requests", 3, "-o", tmp_path / "no\nsuch" / "file")
    assert done.exit_code == 2
    assert done.stderr == f"Error: {tmp_path}/no\\nsuch/file: cannot be written: No such file or directory\n"
