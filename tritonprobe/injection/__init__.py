"""How a program that knows nothing of tritonprobe is watched: by its environment. Knows Python's start, no Triton.

`sitecustomize`, in this folder, is what a Python process imports before anything of its own once the folder is first on
``PYTHONPATH``; child processes inherit that. Nothing else may lie here: for a moment the folder is on ``sys.path``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonprobe.ledger.directory import VARIABLE

SITE = Path(__file__).resolve().parent

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_LONGEST_SHEBANG = 256  # what Linux reads of it


def injected(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """An environment whose Python processes are watched, and keep their numbers in `directory`."""
    before = environ.get("PYTHONPATH")
    path = f"{SITE}{os.pathsep}{before}" if before else str(SITE)
    return {**environ, "PYTHONPATH": path, VARIABLE: str(directory)}


def refusal(command: Sequence[str], program: Path) -> str | None:
    """The flag that keeps our `sitecustomize` out of the process that `command` starts, as in ``python -I``.

    `program` is the file that is run; if it is a script, its first line counts as well. None: nothing to be seen.
    """
    for words in (command, _shebang(program)):
        if words and _PYTHON.fullmatch(Path(words[0]).name):
            flag = _refusing_flag(words[1:])
            if flag is not None:
                return f"{Path(words[0]).name} {flag}"
    return None


def _shebang(program: Path) -> list[str]:
    try:
        with program.open("rb") as file:
            line = file.readline(_LONGEST_SHEBANG)
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words


def _refusing_flag(words: Sequence[str]) -> str | None:
    """``-I`` and ``-E`` ignore PYTHONPATH, ``-S`` imports no sitecustomize; flags may stand together (``-sE``)."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break  # the program's name: what follows is the program's own
        for i, flag in enumerate(word[1:], start=1):
            if flag in "IES":
                return f"-{flag}"
            if flag in "cm":
                return None
            if flag in "WX":
                if i + 1 == len(word):
                    next(rest, None)  # its value is the next word
                break
    return None
