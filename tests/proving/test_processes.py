"""Measuring processes: a request, words on the way, an answer; and one line when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tritonprobe.proving.processes import MeasuringError, ask, environment

CHILD = "tests.proving.misbehaving"


def told(tmp_path: Path, do: str, device: str | None = None) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    return ask(CHILD, {"do": do}, environment(tmp_path, device), said.append), said


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def children() -> set[str]:
    """Those of this process, zombies too; other tests may have left some running."""
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


def test_an_answer_comes_through_whatever_else_is_printed(tmp_path):
    assert told(tmp_path, "talk") == ({"done": "talk"}, ["half way"])


def test_a_process_that_raises_is_quoted_in_one_line(tmp_path):
    with pytest.raises(MeasuringError) as error:
        told(tmp_path, "raise")
    assert str(error.value) == "a measuring process ended with exit code 1: a line"


def test_a_process_that_dies_silently_is_named_by_its_exit_code(tmp_path):
    with pytest.raises(MeasuringError) as error:
        told(tmp_path, "die")
    assert str(error.value) == "a measuring process ended with exit code 3: no message"


def test_a_process_that_never_started_is_a_measuring_error(tmp_path):
    with pytest.raises(MeasuringError, match="No module named"):
        ask("tests.proving.not_there", {}, environment(tmp_path, None), lambda _: None)


def test_no_process_and_no_file_descriptor_is_left(tmp_path):
    files, processes = open_files(), children()
    told(tmp_path, "talk")
    with pytest.raises(MeasuringError):
        told(tmp_path, "die")
    assert open_files() <= files
    assert children() <= processes


def test_the_environment_has_nothing_that_puts_triton_in_another_state(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/tools/ptxas")
    monkeypatch.setenv("TRITONPROBE_DISABLED", "1")
    monkeypatch.setenv("TRITONPROBE_DEVICE", "compile-only:cuda:100")
    monkeypatch.setenv("TRITONPROBE_SERIES_BUDGET", "5000")

    kept = environment(tmp_path, "compile-only:cuda:90")
    assert kept["TRITON_CACHE_DIR"] == str(tmp_path)
    assert kept["TRITON_PTXAS_PATH"] == "/tools/ptxas"
    assert kept["TRITONPROBE_DEVICE"] == "compile-only:cuda:90"
    assert kept["TRITONPROBE_SERIES_BUDGET"] == "5000"
    assert not kept.keys() & {"TRITON_ALWAYS_COMPILE", "TRITONPROBE_DISABLED"}
    assert "TRITONPROBE_DEVICE" not in environment(tmp_path, None)


def test_a_child_imports_what_its_parent_imports(tmp_path, monkeypatch):
    (tmp_path / "only_here").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "only_here"))
    answer, _ = told(tmp_path, "environment")
    assert str(tmp_path / "only_here") in answer["path"]


def test_a_probe_that_was_not_switched_on_is_found_out(tmp_path):
    with pytest.raises(MeasuringError, match=r"StateError: tritonprobe counted \{'add': 0, 'matmul': 0\} launches"):
        told(tmp_path, "forget to switch on")


def test_a_probe_that_was_not_switched_off_is_found_out(tmp_path):
    with pytest.raises(MeasuringError, match=r"StateError: uninstrument\(\) left something of tritonprobe in Triton"):
        told(tmp_path, "forget to switch off")
