"""Signals and ends of a supervised command, where `run` as a whole cannot be made to meet them."""

from __future__ import annotations

import subprocess
import sys

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from tritonprobe.cli.supervise import signals_held, supervise
PYTHON, others = Path(sys.executable), []
def command(code, mask): return supervise(PYTHON, ("python", "-c", code), os.environ, mask, others.append)
"""


def said(code: str) -> str:
    """What a process says that supervises: signals are a whole process's."""
    command = [sys.executable, "-c", PREAMBLE + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_signal_before_the_command_starts_is_not_lost() -> None:
    code = """
with signals_held() as mask:
    os.kill(os.getpid(), signal.SIGTERM)
    print(command("print('ran')", mask))
"""
    assert said(code) == "Ending(code=143, crashed=False)\n"


def test_a_signal_after_the_command_ended_changes_nothing() -> None:
    code = """
with signals_held() as mask:
    print(command("import sys; sys.exit(4)", mask))
    os.kill(os.getpid(), signal.SIGTERM)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    assert said(code) == "Ending(code=4, crashed=False)\nset()\n"


def test_a_mask_that_was_there_is_the_commands_and_comes_back() -> None:
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with signals_held() as mask:
    command("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)", mask)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    assert said(code) == "{<Signals.SIGUSR1: 10>}\n" * 2


def test_where_childrens_ends_are_ignored_the_commands_is_not() -> None:
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with signals_held() as mask:
    print(command("import sys; sys.exit(4)", mask))
print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)
"""
    assert said(code) == "Ending(code=4, crashed=False)\nTrue\n"


def test_other_children_are_reaped_and_told_of() -> None:
    code = """
with signals_held() as mask:
    other = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
    command("import time; time.sleep(0.5)", mask)
print(others == [other])
try:
    os.waitpid(other, os.WNOHANG)
except ChildProcessError:
    print("reaped")
"""
    assert said(code) == "True\nreaped\n"


def test_who_died_of_a_signal_that_we_passed_on_has_not_crashed() -> None:
    code = """
with signals_held() as mask:
    print(command("import os; os.kill(os.getpid(), 9)", mask))
    print(command("import os, signal; os.kill(os.getppid(), signal.SIGUSR1); signal.pause()", mask))
"""
    assert said(code) == "Ending(code=137, crashed=True)\nEnding(code=138, crashed=False)\n"
