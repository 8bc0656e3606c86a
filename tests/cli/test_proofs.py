"""`tritonprobe bench cold` and `bench overhead` as their user meets them: tables, documents, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tritonprobe.cli import main
from tritonprobe.proving import cold, overhead
from tritonprobe.proving.processes import MeasuringError

DEVICE = ("--device", "compile-only:cuda:90")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first process of `cold`: three compiles, for real."""
    monkeypatch.setattr(cold, "PARTS", cold.PARTS[:1])
    monkeypatch.setattr(cold, "KINDS", cold.KINDS[:3])


def test_cold_prints_a_table_and_leaves_its_document(three_rows, tmp_path):
    done = run("cold", *DEVICE, "--repeat", 1, "-o", tmp_path / "cold.json")
    document = json.loads((tmp_path / "cold.json").read_text())
    lines = done.stdout.splitlines()

    assert lines[0].startswith("compile-only:cuda:90; tritonprobe ")
    for row in document["rows"]:
        (line,) = [line for line in lines[2:5] if line.startswith(row["title"])]
        assert ("BROKEN" in line) is not row["within_bound"]
        assert f"{row['title']}: 1 x compile, cubins written: 1; " in done.stdout
    assert "no launcher stub is built" in done.stdout
    assert "repetition 1 of 1" in done.stderr
    assert done.exit_code == (0 if document["good"] else 1)
    assert document["command"] == f"tritonprobe bench cold --device {DEVICE[1]} --repeat 1 --output cold.json"
    assert {"format", "bench", "date", "versions", "device", "bound", "good"} <= document.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["cold.json"]
    assert str(Path.home()) not in json.dumps(document)
    assert str(tmp_path) not in json.dumps(document)


def test_a_broken_bound_is_exit_code_1(three_rows, monkeypatch):
    monkeypatch.setattr(cold, "LEAST_NS", 1)
    monkeypatch.setattr(cold, "SHARE", 1e-9)
    done = run("cold", *DEVICE, "--repeat", 1, "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["good"] is False
    assert [row["within_bound"] for row in document["rows"]] == [False] * 3


def test_overhead_prints_a_table_and_its_exit_code_says_whether_it_is_conclusive(tmp_path):
    done = run("overhead", *DEVICE, "--pairs", 2, "--launches", 20, "-o", tmp_path / "overhead.json")
    document = json.loads((tmp_path / "overhead.json").read_text())

    assert done.exit_code == (1 if document["inconclusive"] else 0)
    assert ("Inconclusive" in done.stdout) is document["inconclusive"]
    for title in ("instrument()", "instrument(), and an op", "wrapper around run()", "pre_run_hook"):
        assert len(re.findall(rf"^{re.escape(title)}  +(?:add \(5\)|matmul \(16\)) ", done.stdout, re.MULTILINE)) == 2
    for title in ("launch hooks, no-op", "Proton", "torch.profiler"):
        assert f"Not available: {title} (launches do nothing on the compile-only device)." in done.stdout
    assert document["command"] == (
        f"tritonprobe bench overhead --device {DEVICE[1]} --pairs 2 --launches 20 --seed 0 --output overhead.json"
    )


@pytest.mark.parametrize("verb", ["cold", "overhead"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "gpu"), "--device 'gpu': expected auto, cuda or compile-only:cuda:90"),
        ((*DEVICE, "-o", "/no/such/folder/x.json"), "/no/such/folder is no folder that can be written to"),
        ((*DEVICE, "-o", "/"), "'/' is a directory"),
        (("--repeat", "0"), "--repeat"),
        (("--pairs", "1"), "--pairs"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(verb, arguments, said):
    done = run(verb, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_without_a_gpu_there_are_no_gpu_times_to_measure(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run("gpu")
    assert (done.exit_code, done.stderr) == (2, "Error: bench gpu needs a GPU, and torch sees no CUDA device\n")


@pytest.mark.parametrize(("verb", "measurement"), [("cold", cold), ("overhead", overhead)])
def test_a_measurement_that_fails_is_one_line_and_exit_code_1(verb, measurement, monkeypatch, tmp_path):
    def ends(*_: object) -> None:
        raise MeasuringError("a measuring process ended with exit code 1: out of memory")

    monkeypatch.setattr(measurement, "ask", ends)
    done = run(verb, *DEVICE, "-o", tmp_path / "x.json")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "Error: a measuring process ended with exit code 1: out of memory"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("verb", "measurement"), [("cold", cold), ("overhead", overhead)])
def test_ctrl_c_is_exit_code_130_and_leaves_nothing(verb, measurement, monkeypatch, tmp_path):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement, "ask", stopped)
    assert run(verb, *DEVICE, "-o", tmp_path / "x.json").exit_code == 130
    assert not list(tmp_path.iterdir())
