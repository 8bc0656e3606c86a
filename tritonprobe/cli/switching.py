"""``tritonprobe off [DIR]`` and ``tritonprobe on [DIR]``: the kill switch of a running program.

Leaves the sign in the ledger directory, waits for the answer of each living process that counts there, and says which
of them followed. Exit code 1 if one did not.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import click

from tritonprobe.cli.group import BadInput, say, say_json
from tritonprobe.export.exporter import is_counting
from tritonprobe.ledger import signs
from tritonprobe.ledger.directory import VARIABLE, DirectoryError, check, is_locked, own
from tritonprobe.ledger.layout import PAGE, SUFFIX, FormatError, unpack_header
from tritonprobe.ledger.reading import ledger_files, opened

WAIT_SECONDS = 10.0
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Followed:
    """One process: whether it answered, and what it could not take back."""

    pid: int
    name: str
    followed: bool
    left: str


@dataclass(frozen=True, slots=True)
class Other:
    """A file that a living process holds and this version cannot read, so that it does not tell whose it is."""

    file: str
    because: str


@dataclass(slots=True)
class _Living:
    pids: dict[str, int] = field(default_factory=dict)
    """By the name of their ledger: two containers may have the same numbers."""
    others: list[Other] = field(default_factory=list)


def _options(command: F) -> F:
    """What both verbs take."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Say it as JSON.")
    wait = click.option(
        "--wait", type=click.FloatRange(0, 3600), default=WAIT_SECONDS, show_default=True, help="Seconds to wait."
    )
    return click.argument("named", metavar="[DIR]", required=False)(wait(as_json(command)))


@click.command()
@_options
def off(named: str | None, wait: float, as_json: bool) -> None:
    """Takes every patch back in all processes that count in DIR; their metrics stand still.

    DIR is the ledger directory: by default that of TRITONPROBE_DIR, else the only one here in which somebody counts.
    Processes that start there later are not watched either, until `tritonprobe on`.
    """
    _switch(named, "off", wait, as_json)


@click.command()
@_options
def on(named: str | None, wait: float, as_json: bool) -> None:
    """Watches again what was switched off, in all processes that count in DIR."""
    _switch(named, "on", wait, as_json)


def _switch(named: str | None, state: signs.State, wait: float, as_json: bool) -> None:
    directory = _directory(named)
    try:
        asked = signs.ask(directory, state)
    except OSError as error:
        raise BadInput(f"{directory}: the sign cannot be left there ({error.strerror})") from None
    found = answers(directory, asked, time.monotonic() + wait)
    late = signs.asked(directory)
    others = _living(directory).others
    if as_json:
        processes, unread = [asdict(each) for each in found], [asdict(each) for each in others]
        made = {"directory": str(directory), "asked": state, "processes": processes, "unreadable": unread}
        say_json(made)
    else:
        if named is None:
            say(f"{directory} is switched {state}")
        for each in found:
            say(_sentence(each, state, wait, None if late == asked else late))
        for other in others:
            say(f"a process that cannot be asked counts in {directory / other.file}: {other.because}")
        if not found and not others:
            say(f"no process counts in {directory} now; those to come there start {state}")
    if others or not all(each.followed for each in found):
        raise click.exceptions.Exit(1)


def _directory(named: str | None) -> Path:
    """The directory that is meant. Raises BadInput."""
    named = named or os.environ.get(VARIABLE)
    if named:
        path = Path(named)
    else:
        parents = {Path("/dev/shm"), Path(tempfile.gettempdir())}  # noqa: S108  # where `run` makes them
        living = [path for parent in parents for path in own(parent) if is_counting(path)]
        if len(living) != 1:
            several = f"several are in use, {', '.join(map(str, sorted(living)))}" if living else "none is in use here"
            raise BadInput(f"name the ledger directory: {several}")
        path = living[0]
    try:
        check(path)
    except DirectoryError as error:
        raise BadInput(str(error)) from None
    return path


def answers(directory: Path, asked: signs.Asked, until: float) -> list[Followed]:
    """What the living processes of the directory did, asked until all have answered, the time is over, or somebody
    else asks for something: then that is what they answer.
    """
    while True:
        living = _living(directory).pids
        given = {ledger: signs.answered(directory, ledger) for ledger in living}
        found = {ledger: one for ledger, one in given.items() if one is not None and one.token == asked.token}
        if len(found) == len(living) or time.monotonic() > until or signs.asked(directory) != asked:
            return [
                Followed(pid, _name(pid, ledger), ledger in found, found[ledger].left if ledger in found else "")
                for ledger, pid in sorted(living.items(), key=lambda each: (each[1], each[0]))
            ]
        time.sleep(0.02)


def _living(directory: Path) -> _Living:
    """The processes that count in the directory."""
    found = _Living()
    with suppress(OSError):
        for path in ledger_files(directory):
            try:
                if is_locked(path):
                    with opened(path) as handle:
                        found.pids[path.stem] = unpack_header(os.pread(handle, PAGE, 0))[0].pid
            except FormatError as error:
                found.others.append(Other(path.name, str(error)))
            except OSError:
                continue  # it is gone, or nobody's
    return found


def _name(pid: int, ledger: str) -> str:
    """What the process is called; nothing if it is another container's, whose number means somebody else here."""
    process = Path("/proc", str(pid))
    with suppress(OSError):
        if f"/{ledger}{SUFFIX}" in (process / "maps").read_text(errors="replace"):
            return (process / "comm").read_text(errors="replace").strip()
    return ""


def _sentence(each: Followed, state: signs.State, wait: float, late: signs.Asked | None) -> str:
    """`late` is what somebody else has asked for meanwhile: that is what processes answer now."""
    who = f"process {each.pid}{f' ({each.name})' if each.name else ''}"
    if not each.followed and late is not None:
        return f"{who}: no answer: somebody else has asked for {late.state} meanwhile"
    if not each.followed:
        return f"{who}: no answer within {wait:g} s: it is not watched by instrument() or @probe, or hangs"
    return f"{who}: {state}{f'; {each.left} wrapped by others, and pass through' if each.left else ''}"
