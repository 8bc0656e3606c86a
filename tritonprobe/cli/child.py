"""A server as a child process: started, watched, and ended whatever happens. Knows processes, not what they serve.

The child prints its URL as the first line of its standard output once it takes requests; its standard error goes to a
log file, whose end is shown when it dies.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tritonprobe.plain import plain

LAST_LINES = 12
"""Lines of the log that an error shows."""
GRACE_SECONDS = 15.0
"""Time to end after being asked to."""


class ChildError(Exception):
    """The child died or never came up: one sentence, then the end of its log."""


@dataclass(frozen=True, slots=True)
class Child:
    url: str
    started_in: float
    _process: subprocess.Popen[str]
    _log: Path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def died(self) -> ChildError:
        """What to raise when `alive` turned false."""
        return _death(self._process, self._log)


@contextmanager
def child(
    command: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str], timeout: float = 300.0
) -> Iterator[Child]:
    """Runs `command` until the block ends. Raises ChildError if it dies, or prints no URL within `timeout` seconds."""
    begin = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A session of its own: Ctrl-C reaches us alone, and the whole group can be ended with it.
            start_new_session=True,
        )
    try:
        url = _first_line(process, timeout)
        if url is None:
            raise ChildError(f"the server was not up after {timeout:.0f} s; the end of its log:\n{_tail(log)}")
        if not url:
            raise _death(process, log)
        yield Child(url, time.monotonic() - begin, process, log)
    finally:
        _end(process)


def _first_line(process: subprocess.Popen[str], timeout: float) -> str | None:
    """What the child prints first; empty if it ends before, None if it says nothing in time."""
    assert process.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_drain, args=(process.stdout, lines), daemon=True).start()
    try:
        return lines.get(timeout=timeout).strip()
    except queue.Empty:
        return None


def _drain(stdout: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Passes the first line on and reads the rest, so that a talkative child never blocks on a full pipe."""
    with stdout:
        lines.put(next(stdout, ""))
        for _ in stdout:
            pass


def _death(process: subprocess.Popen[str], log: Path) -> ChildError:
    try:
        code = process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return ChildError(f"the server closed its output and hangs; the end of its log:\n{_tail(log)}")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return ChildError(f"the server {how}; the end of its log:\n{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join(f"  {plain(line)}" for line in lines) or "  (nothing)"


def _end(process: subprocess.Popen[str]) -> None:
    """Asks the child's group to end, then makes it."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[str], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
