"""The engines' entry point: it watches a process that has a ledger directory, and leaves every other one alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import logging
logging.basicConfig(level=logging.INFO)
from importlib import import_module
from tritonprobe import runtime
import triton
plain = triton.JITFunction.run
module, _, name = sys.argv[1].partition(":")
attach = getattr(import_module(module), name)
attach(); attach()
print(triton.JITFunction.run is not plain)
"""
ROOT = Path(__file__).parents[1]


def entry_point() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    _, _, rest = text.partition('[project.entry-points."vllm.general_plugins"]\ntritonprobe = "')
    return rest.partition('"')[0]


def run(**env: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITONPROBE_DIR"}
    command = [sys.executable, "-c", "import sys\n" + CODE, entry_point()]
    return subprocess.run(command, env={**environ, **env}, capture_output=True, text=True, check=False, timeout=60)


def test_with_a_directory_the_process_is_watched(tmp_path: Path) -> None:
    done = run(TRITONPROBE_DIR=str(tmp_path / "ledger"))
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_without_one_it_does_nothing_and_says_what_would_do() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "set TRITONPROBE_DIR to a directory" in done.stderr


def test_a_setting_that_cannot_be_used_is_no_fault_of_the_engines(tmp_path: Path) -> None:
    done = run(TRITONPROBE_DIR=str(tmp_path / "ledger"), TRITONPROBE_PORT="many")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "TRITONPROBE_PORT" in done.stderr
