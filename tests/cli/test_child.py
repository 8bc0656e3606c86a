"""A child process comes up, is watched, and is gone when the block ends: however it ends."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tritonprobe.cli.child import ChildError, child

SERVES = "import sys, time; print('http://127.0.0.1:1', flush=True); print('up', file=sys.stderr, flush=True); {then}"


def run(script: str, log: Path, timeout: float = 30.0):
    return child([sys.executable, "-c", script], log, cwd=log.parent, env=os.environ, timeout=timeout)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_first_line_is_the_url_and_the_child_ends_with_the_block(tmp_path: Path) -> None:
    with run(SERVES.format(then="time.sleep(600)"), tmp_path / "log") as server:
        assert server.url == "http://127.0.0.1:1"
        assert server.alive
        pid = server.pid
    assert not server.alive
    assert gone(pid)


def test_the_block_may_raise(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), run(SERVES.format(then="time.sleep(600)"), tmp_path / "log") as server:
        raise KeyboardInterrupt
    assert gone(server.pid)


def test_children_of_the_child_end_too(tmp_path: Path) -> None:
    fork = (
        "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, file=sys.stderr, flush=True); p.wait()"
    )
    log = tmp_path / "log"
    with run(SERVES.format(then=fork), log):
        deadline = time.monotonic() + 20
        while len(log.read_text().split()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    grandchild = int(log.read_text().split()[1])
    deadline = time.monotonic() + 20
    while not gone(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(grandchild)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('no GPU')", "the server ended with exit code 1; the end of its log:\n  no GPU"),
        ("import os; os.kill(os.getpid(), 9)", "the server was killed by SIGKILL; the end of its log:\n  (nothing)"),
    ],
)
def test_a_child_that_never_comes_up_says_why(script: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=f"^{re.escape(message)}$"), run(script, tmp_path / "log"):
        pass


def test_a_child_that_says_nothing_in_time_is_given_up(tmp_path: Path) -> None:
    silent = "import time; time.sleep(600)"
    with pytest.raises(ChildError, match=r"^the server was not up after 0 s"), run(silent, tmp_path / "log", 0.3):
        pass


def test_a_death_in_the_block_is_seen_and_told_with_the_last_lines(tmp_path: Path) -> None:
    script = SERVES.format(then="[print(i, file=sys.stderr) for i in range(99)]; sys.exit(7)")
    with run(script, tmp_path / "log") as server:
        deadline = time.monotonic() + 20
        while server.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server.alive
        lines = str(server.died()).splitlines()
    assert lines[0] == "the server ended with exit code 7; the end of its log:"
    assert lines[1:] == [f"  {i}" for i in range(87, 99)]


def test_a_talkative_child_is_not_blocked_by_a_full_pipe(tmp_path: Path) -> None:
    with run(SERVES.format(then="print('x' * 1_000_000, flush=True); sys.exit(0)"), tmp_path / "log") as server:
        deadline = time.monotonic() + 20
        while server.alive and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server.alive


def test_a_child_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonprobe.cli.child.GRACE_SECONDS", 0.2)
    stubborn = f"import signal; signal.signal({int(signal.SIGTERM)}, signal.SIG_IGN); " + SERVES.format(
        then="time.sleep(600)"
    )
    with run(stubborn, tmp_path / "log") as server:
        pass
    assert gone(server.pid)
