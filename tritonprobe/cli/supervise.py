"""One command, run as if we were not there: its descriptors, its signals, its end. Knows processes, not what they do.

Not by `subprocess`, which would close descriptors that are meant for the command (a job server's, systemd's sockets)
and hand our signal mask on. The command stays in our process group, and so in the foreground of its terminal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_OURS = (*PASSED_ON, signal.SIGCHLD)
# Python ignores these two, and what is ignored stays so in the command.
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)

Signals = frozenset[signal.Signals]


@dataclass(frozen=True, slots=True)
class Ending:
    """``code`` as a shell gives it. ``crashed``: a signal ended it that nobody had sent by way of us."""

    code: int
    crashed: bool


@contextmanager
def signals_held() -> Iterator[Signals]:
    """Within the block signals wait until they are asked for. Gives the mask that was before.

    Those that nobody asked for are dropped in the end: the command's exit code is to be ours, and nothing else.
    """
    chld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the command's end with it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        yield frozenset(map(signal.Signals, before))
    finally:
        while signal.sigtimedwait(_OURS, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, chld)


def supervise(
    program: Path,
    command: Sequence[str],
    env: Mapping[str, str],
    mask: Signals,
    on_other: Callable[[int], None],
) -> Ending:
    """Runs `command`, whose file is `program`, to its end; within `signals_held`, which gave the `mask`.

    ``on_other(pid)`` is told of every other child that ended meanwhile. A signal that is there before the command is
    ends us in its place. Raises OSError if it cannot be started.
    """
    early = signal.sigtimedwait(PASSED_ON, 0)
    if early is not None:
        return Ending(128 + early.si_signo, crashed=False)
    pid = os.posix_spawn(program, list(command), env, setsigmask=mask, setsigdef=_PYTHONS)
    asked: set[int] = set()
    while True:
        came = signal.sigwaitinfo(_OURS)
        if came.si_signo == signal.SIGCHLD:
            for child, status in _ended():
                if child == pid:
                    return _ending(os.waitstatus_to_exitcode(status), asked)
                on_other(child)
        else:
            asked.add(came.si_signo)
            if not _has_it_already(came):
                os.kill(pid, came.si_signo)  # never someone else: until we have asked for its end the number is its own


def _has_it_already(came: signal.struct_siginfo) -> bool:
    """Whether the command got this signal when we did: a terminal sends Ctrl-C to its whole foreground group.

    That it has gone, it tells the leader of its session alone.
    """
    by_the_kernel = came.si_code > 0
    return by_the_kernel and not (came.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid())


def _ended() -> Iterator[tuple[int, int]]:
    """All children that ended. As a container's first process we have more of them than we started."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _ending(exit_code: int, asked: set[int]) -> Ending:
    if exit_code >= 0:
        return Ending(exit_code, crashed=False)
    return Ending(128 - exit_code, crashed=-exit_code not in asked)
