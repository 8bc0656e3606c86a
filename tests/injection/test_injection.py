"""The environment that watches a program, and which programs it cannot reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritonprobe.injection import SITE, injected, refusal

PYTHON = Path("/usr/bin/python3")


def test_the_environment_of_a_watched_program() -> None:
    env = injected({"HOME": "/root", "PYTHONPATH": "mine:yours"}, Path("/dev/shm/t"))
    assert env == {"HOME": "/root", "PYTHONPATH": f"{SITE}:mine:yours", "TRITONPROBE_DIR": "/dev/shm/t"}


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": ""}])
def test_without_a_path_of_its_own_it_gets_no_empty_entry(before: dict[str, str]) -> None:
    # An empty entry would be the current folder.
    assert injected(before, Path("/dev/shm/t"))["PYTHONPATH"] == str(SITE)


def test_what_lies_in_the_folder_cannot_shadow_a_module() -> None:
    assert {path.name for path in SITE.iterdir()} - {"__pycache__"} == {"__init__.py", "sitecustomize.py"}


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["python", "x.py"], None),
        (["python"], None),
        (["python3.12", "-I", "x.py"], "python3.12 -I"),
        (["/usr/bin/python3", "-sE", "x.py"], "python3 -E"),
        (["pypy3", "-S", "-c", "pass"], "pypy3 -S"),
        (["python", "-u", "-W", "-I", "x.py"], None),  # the value of -W
        (["python", "-Xdev", "-W", "error", "-I", "x.py"], "python -I"),
        (["python", "-m", "tool", "-I"], None),  # the tool's own
        (["python", "-uc", "pass", "-S"], None),
        (["python", "-cI"], None),
        (["python", "x.py", "-I"], None),
        (["python", "--version", "-I"], None),
        (["python", "-", "-I"], None),
        (["ipython", "-I"], None),
        (["bash", "-I"], None),
    ],
)
def test_flags_that_keep_us_out_are_seen(words: list[str], flag: str | None) -> None:
    assert refusal(words, PYTHON) == flag


@pytest.mark.parametrize(
    ("first", "flag"),
    [
        (b"#!/usr/bin/python3 -sI\n", "python3 -I"),
        (b"#!/usr/bin/env -S python3 -E\n", "python3 -E"),
        (b"#! /usr/bin/env python3\n", None),
        (b"#!/bin/sh -E\n", None),
        (b"#!\n", None),
        (b"#!/usr/bin/env\n", None),
        (b"\x7fELF\xff", None),
        (b"", None),
    ],
)
def test_so_are_those_in_the_first_line_of_a_script(first: bytes, flag: str | None, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_bytes(first + b"print('hello')\n")
    assert refusal([str(script), "x"], script) == flag


def test_a_file_that_cannot_be_read_refuses_nothing(tmp_path: Path) -> None:
    assert refusal(["tool"], tmp_path / "gone") is None


@pytest.mark.parametrize("flags", [[], ["-s"], ["-u", "-W", "error"], ["-I"], ["-E"], ["-S"], ["-sE"], ["-P"]])
def test_python_agrees(flags: list[str], tmp_path: Path) -> None:
    if flags == ["-P"] and sys.version_info < (3, 11):
        pytest.skip("-P is new in Python 3.11")
    code = "import sys; print(any(type(finder).__name__ == '_AwaitTriton' for finder in sys.meta_path))"
    command = [sys.executable, *flags, "-c", code]
    said = subprocess.check_output(command, text=True, env=injected(os.environ, tmp_path))
    assert said.strip() == str(refusal(command, Path(sys.executable)) is None)
