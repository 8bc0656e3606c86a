"""Signs: the few words that the processes of a ledger directory leave for each other. Knows files, nothing of numbers.

``ready``             when the engine took traffic; stands as long as the process that wrote it lives, and another that
                      says so writes it anew
``switch``            what was asked for last: that all processes stop watching, or watch again
``switched.LEDGER``   the answer to that of the process whose ledger file is called so

A process's number would not do for a name: in two containers that share a directory two may have the same.

Each is written whole under another name and renamed, so that the directory's own time of change tells a sleeping
thread, at the price of one `stat`, whether there is anything to read.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tritonprobe.ledger.handle import Handle
from tritonprobe.ledger.layout import SUFFIX

State = Literal["on", "off"]
READY, SWITCH, ANSWER = "ready", "switch", "switched."
_LONGEST = 4096
_UNFINISHED = re.compile(rf"\.({READY}|{SWITCH}|{re.escape(ANSWER)}.+)\.[0-9a-f]{{16}}").fullmatch
_STALE_SECONDS = 60.0  # a sign that is not in its place after so long was left by a kill


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: ``token`` tells one time from another."""

    state: State
    token: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process did. ``left`` names what somebody else had wrapped, and what failed."""

    ledger: str
    token: str
    left: str


def tell_ready(directory: Path, unix_ns: int) -> int:
    """Leaves the sign that the directory's engine is ready. Returns a descriptor: the sign stands while it is open.

    Raises OSError. A child that was forked keeps it standing as well.
    """
    return _written(directory, READY, str(unix_ns))


def keep(handle: int) -> None:
    """Keeps a sign standing until this process exits, and not longer: its directory is then looked at for removal."""
    atexit.register(Handle(handle).close)


def ready_at(directory: Path) -> int | None:
    """When the directory's engine became ready, in Unix nanoseconds; None without a living process that says so."""
    try:
        handle = os.open(directory / READY, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(handle, _LONGEST).decode(errors="replace").strip()
        return int(text) if text.isdecimal() else None
    except OSError:
        return None
    finally:
        os.close(handle)
    return None  # nobody holds it: its process is gone


def ask(directory: Path, state: State) -> Asked:
    """Asks every process of the directory. Raises OSError."""
    asked = Asked(state, secrets.token_hex(8))
    for path in directory.glob(f"{ANSWER}*"):  # to what was asked before
        path.unlink(missing_ok=True)
    os.close(_written(directory, SWITCH, f"{asked.state} {asked.token}"))
    return asked


def asked(directory: Path) -> Asked | None:
    """What was asked for last; None if nothing ever was."""
    state, _, token = _read(directory / SWITCH).partition(" ")
    return Asked(state, token) if state in get_args(State) and token else None  # type: ignore[arg-type]


def answer(directory: Path, given: Answer) -> None:
    """This process's answer. Raises OSError."""
    os.close(_written(directory, f"{ANSWER}{given.ledger}", f"{given.token} {given.left}"))


def answered(directory: Path, ledger: str) -> Answer | None:
    """What the process with this ledger said last."""
    token, _, left = _read(directory / f"{ANSWER}{ledger}").partition(" ")
    return Answer(ledger, token, left) if token else None


def sweep(directory: Path) -> None:
    """Removes the answers of processes whose ledgers are folded, and what kills left. Raises OSError."""
    for path in directory.iterdir():
        folded = path.name.startswith(ANSWER) and not path.with_name(f"{path.name[len(ANSWER) :]}{SUFFIX}").exists()
        with suppress(FileNotFoundError):
            if folded or (_UNFINISHED(path.name) and time.time() - path.lstat().st_mtime > _STALE_SECONDS):
                path.unlink()


def changed(directory: Path) -> int | None:
    """A number that is another one once a sign was left; None if the directory cannot be seen."""
    with suppress(OSError):
        return directory.stat().st_mtime_ns
    return None


def _written(directory: Path, name: str, text: str) -> int:
    """Writes a sign; returns a descriptor that holds its lock."""
    fresh = directory / f".{name}.{secrets.token_hex(8)}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, f"{text}\n".encode())
        fcntl.flock(handle, fcntl.LOCK_EX)
        fresh.rename(directory / name)
    except BaseException:
        os.close(handle)
        with suppress(OSError):
            fresh.unlink()
        raise
    return handle


def _read(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(handle, _LONGEST).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(handle)
