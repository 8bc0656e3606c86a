"""Measurements in processes of their own: asked with one JSON object, answering with another. Knows no measurement.

The child reads the request from its standard input. Its answer, and its words on how far it is, come through a pipe of
their own: compilers and profilers write to the standard output as they please, and that goes to a log, whose last line
is quoted when the child fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Say = Callable[[str], None]
Request = dict[str, Any]
Answer = dict[str, Any]
_GRACE_SECONDS = 10.0


class MeasuringError(Exception):
    """A measuring process ended without an answer; the message is one line."""


def environment(cache: Path, device: str | None) -> dict[str, str]:
    """What a measuring process sees: our environment, less what would put Triton or tritonprobe in another state.

    Settings of tritonprobe that say how it works stay: what is measured is the probe as its user runs it. `device` is a
    compile-only device, or None for the GPU.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TRITONPROBE_DEVICE", "TRITONPROBE_DISABLED")
        and not (name.startswith("TRITON_") and not name.endswith("_PATH"))  # the tools' places stay
    }
    kept["PYTHONPATH"] = os.pathsep.join(place for place in sys.path if place)  # the child imports what we import
    kept["TRITON_CACHE_DIR"] = str(cache)
    if device is not None:
        kept["TRITONPROBE_DEVICE"] = device
    return kept


def ask(module: str, request: Request, env: Mapping[str, str], say: Say) -> Answer:
    """Runs ``python -m module`` with `request`; `say` is told how far it is. Raises MeasuringError."""
    read, write = os.pipe()
    with tempfile.TemporaryFile("w+") as log, os.fdopen(read) as lines:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", module, str(write)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
                text=True,
            )
        finally:
            os.close(write)
        try:
            answer = _talk(child, lines, request, say)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(_GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        if answer is None or code != 0:
            log.seek(0)
            said = [line.strip() for line in log if line.strip()]
            raise MeasuringError(
                f"a measuring process ended with exit code {code}: {said[-1] if said else 'no message'}"
            )
        return answer


def _talk(child: subprocess.Popen[str], lines: Any, request: Request, say: Say) -> Answer | None:
    assert child.stdin is not None
    try:
        with child.stdin as stdin:
            json.dump(request, stdin)
    except BrokenPipeError:
        return None  # dead before it read its request: its log says why
    answer = None
    for line in lines:
        told = json.loads(line)
        if "answer" in told:
            answer = told["answer"]
        else:
            say(told["say"])
    return answer


def answer(measure: Callable[[Request, Say], Answer]) -> None:
    """The main of a measuring process: reads the request, measures, answers."""
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as lines:
        request: Request = json.load(sys.stdin)
        result = measure(request, lambda text: print(json.dumps({"say": text}), file=lines))  # to the pipe
        lines.write(json.dumps({"answer": result}) + "\n")
