"""`tritonprobe demo`: a real server twice, one report, three files; and one sentence where it cannot be had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import has_gpu, require_tool
from tritonprobe.cli import demo as module
from tritonprobe.cli.demo import demo
from tritonprobe.story import from_json

COMMAND = [sys.executable, "-m", "tritonprobe", "demo"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A whole demo with little traffic: what it printed, and the folder it left."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    command = [*COMMAND, "--requests", "8", "--seed", "3", "--device", "compile-only:cuda:90", "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False), out


@pytest.mark.slow
def test_the_screen_compares_cold_and_warm(shown) -> None:
    done, out = shown
    assert done.returncode == 0, done.stderr
    assert "compile-only:cuda:90, triton 3." in done.stdout
    assert "not measured  GPU times" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows if row[:1] == ["TTFT"]] == [["TTFT", "cold"], ["TTFT", "warm"]]
    assert "cold: the request at P99: TTFT" in done.stdout
    assert "what would make it stop (cold)" in done.stdout
    assert f"are in {out}" in done.stdout
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


@pytest.mark.slow
def test_the_report_says_what_compiled_and_that_the_warm_run_compiled_nothing(shown) -> None:
    _, out = shown
    report = json.loads((out / "report.json").read_text())
    cold, warm = from_json(report["cold"]["server"]), from_json(report["warm"]["server"])
    compiled = {
        run: next(t for t in story.tiers if t.tier == "compile") for run, story in (("cold", cold), ("warm", warm))
    }
    assert compiled["cold"].calls > 5
    assert (compiled["warm"].calls, compiled["warm"].lookups) == (0, 0)
    assert next(t for t in warm.tiers if t.tier == "disk").calls > 5
    # The first request waited for compiles: most of the slowest TTFT is in named phases of the stall.
    assert cold.slowest is not None
    assert cold.slowest.in_batch + cold.slowest.queued > 0.5 * cold.slowest.ttft
    phases = {p.phase: p.seconds for p in cold.phases}
    assert phases["other"] < 0.05 * cold.cold_seconds
    assert report["cold"]["client"]["completed"] == report["warm"]["client"]["completed"] == 8


@pytest.mark.slow
def test_the_metrics_are_what_prometheus_reads(shown) -> None:
    _, out = shown
    for name in ("metrics-cold.txt", "metrics-warm.txt"):
        with (out / name).open() as text:
            done = subprocess.run([require_tool("promtool"), "check", "metrics"], stdin=text, check=False)
        assert done.returncode == 0


@pytest.mark.slow
def test_json_instead_of_the_screen(tmp_path: Path) -> None:
    command = [*COMMAND, "--requests", "1", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "report.json").read_text())


def test_a_server_that_dies_is_told_with_the_end_of_its_log(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRITONPROBE_SERIES_BUDGET", "many")
    result = CliRunner().invoke(demo, ["--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "Error: the server ended with exit code 2; the end of its log:" in result.stderr
    assert "TRITONPROBE_SERIES_BUDGET='many': expected a whole number" in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("device", ["foo", "cuda"])
def test_a_device_that_is_not_there_is_bad_input_before_anything_starts(device: str, tmp_path: Path) -> None:
    if device == "cuda" and has_gpu():
        pytest.skip("asks for a CUDA device where there is none")
    result = CliRunner().invoke(demo, ["--device", device, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    (said,) = result.stderr.splitlines()
    assert said.startswith(f"Error: --device {'cuda: torch sees no CUDA device' if device == 'cuda' else repr(device)}")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(demo, ["--out", str(tmp_path / "file" / "out")])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(
        f"--out {tmp_path}/file/out: the folder cannot be made: Not a directory"
    )


def test_without_the_examples_it_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVER", "examples.not_there")
    result = CliRunner().invoke(demo, [])
    assert result.exit_code == 1
    assert "run it from a checkout: make demo" in result.stderr


def test_what_it_needs_and_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDED", ("torch", "no_such_package"))
    result = CliRunner().invoke(demo, [])
    assert result.exit_code == 1
    assert "the demo needs no_such_package: pip install" in result.stderr


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_demo_stops_its_server(how: signal.Signals, code: int, tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen([*COMMAND, "--out", tmp_path / "out"], stderr=subprocess.PIPE, text=True, env=env)
    assert running.stderr is not None
    line = ""
    while "sending" not in line:
        line = running.stderr.readline()
        assert line, "the demo ended before it sent anything"
    (server,) = _children(running.pid)
    running.send_signal(how)
    assert running.wait(timeout=60) == code
    deadline = time.monotonic() + 20
    while Path(f"/proc/{server}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{server}").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list((tmp_path / "out").iterdir()) == []


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
