"""The kernels' answers, checked without a GPU: the tests of `interpreter/`, in a process of their own.

Triton decides between its compiler and its interpreter when it is imported, so this process cannot do both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

INTERPRETER_TESTS = Path(__file__).parent / "interpreter"


def test_kernels_give_their_references_answers_on_the_interpreter() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITONPROBE_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", str(INTERPRETER_TESTS)],
        env={**environment, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert re.search(r"\b\d+ passed\b", report), report
    assert not re.search(r"skipped|xfailed", report), report
