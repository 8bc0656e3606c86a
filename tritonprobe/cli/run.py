"""``tritonprobe run -- CMD``: a command and its children, watched without a change to their code.

Makes a ledger directory, starts an exporter process on it, and runs the command in an environment that instruments
Triton wherever it is imported. The command runs in any case: what else cannot be had is told in one line. Its exit code
is ours; 127 and 126 say, as in a shell, that it was not found or cannot be run.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from tritonprobe.cli.census import load
from tritonprobe.cli.group import BadInput, say
from tritonprobe.cli.serve import Port, served_at
from tritonprobe.cli.sidecar import Sidecar, start
from tritonprobe.cli.summary import Counted
from tritonprobe.cli.supervise import Ending, Signals, signals_held, supervise
from tritonprobe.export.exporter import is_counting
from tritonprobe.injection import injected, refusal
from tritonprobe.ledger import DirectoryReader, signs
from tritonprobe.ledger.directory import Directory, DirectoryError, choose, leave
from tritonprobe.ledger.fold import fold
from tritonprobe.ledger.layout import FormatError
from tritonprobe.ledger.reading import generation, ledger_files
from tritonprobe.prewarming.keeper import collect
from tritonprobe.settings import Settings
from tritonprobe.wording import counted

NOT_FOUND, NOT_RUNNABLE = 127, 126


@dataclass(frozen=True, slots=True)
class Command:
    program: Path
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class Censuses:
    """Files: which one the command's processes replay, and where theirs goes."""

    replayed: Path | None
    recorded: Path | None


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--port", type=Port, help="Where metrics are; 0: any free port.  [default: TRITONPROBE_PORT or 9464]")
@click.option("--addr", help="On which address.  [default: TRITONPROBE_ADDR or 127.0.0.1]")
@click.option("--dir", "named", metavar="DIR", help="Ledger directory.  [default: TRITONPROBE_DIR, or a fresh one]")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Write the census of all processes.")
@click.option("--prewarm", type=click.Path(path_type=Path), metavar="FILE", help="Replay this census before ready.")
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    words: tuple[str, ...],
    port: int | None,
    addr: str | None,
    named: str | None,
    record: Path | None,
    prewarm: Path | None,
) -> None:
    """Runs a command and counts what Triton does in it and in its children, without a change to their code.

    Metrics are served by a process of its own while the command runs. Its exit code is the command's.
    """
    settings = served_at(addr, port)
    census = Censuses(_replayed(prewarm), _recorded(record))
    command = Command(_program(words[0]), words)
    with signals_held() as signals:
        directory = None if settings.disabled else _directory(named, settings)
        if directory is None:
            ending = _supervise(command, _environment(), signals)
            _say_if_unwritten(census.recorded)
        else:
            ending = _watched(command, directory, settings, signals, census)
    raise click.exceptions.Exit(ending.code)


def _program(name: str) -> Path:
    """The file that a shell would run. Ends us as the shell would if there is none."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    if os.sep in name and Path(name).exists():
        _say(f"{name}: cannot be run: it is {'a directory' if Path(name).is_dir() else 'no executable file'}")
        raise click.exceptions.Exit(NOT_RUNNABLE)
    _say(f"{name}: command not found{'' if os.sep in name else ' on the PATH'}")
    raise click.exceptions.Exit(NOT_FOUND)


def _directory(named: str | None, settings: Settings) -> Directory | None:
    try:
        return choose(named, "--dir ") if named else choose(settings.dir)
    except DirectoryError as error:
        _say(f"{error}; the command runs unwatched")
        return None


def _environment() -> dict[str, str]:
    """The environment as it was handed to us.

    A `sitecustomize` that ran in this process may have changed it meanwhile, as that of opentelemetry-instrument does:
    it takes itself off PYTHONPATH, and would be missing in the command.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _replayed(path: Path | None) -> Path | None:
    """A census that can be read, before a server starts without it. Raises BadInput."""
    if path is not None:
        load(path)
    return None if path is None else path.absolute()


def _recorded(path: Path | None) -> Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise BadInput(f"--record {path}: {path.absolute().parent} is no folder")
    return path


def _watched(command: Command, directory: Directory, settings: Settings, signals: Signals, census: Censuses) -> Ending:
    path = directory.path
    reader = DirectoryReader(path, settings.series_budget)
    before, files, shared = Counted.by(reader), _files(path), is_counting(path)
    env = injected(_environment(), path)
    if census.replayed is not None:
        env["TRITONPROBE_PREWARM"] = str(census.replayed)
        settings = settings.with_(prewarm=str(census.replayed))
    serving = start(path, settings)
    if serving is not None:
        env["TRITONPROBE_PORT"] = "0"  # a program that serves itself, too, finds the port of its choice taken
    _say(_banner(command, path, serving))

    def gone(pid: int) -> None:
        if serving is not None and pid == serving.pid:
            _say(f"the exporter has ended; the command goes on, and counts in {path}")

    try:
        ending = _supervise(command, env, signals, gone)
    finally:
        if serving is not None:
            serving.stop()
    if _files(path) == files:
        _say("nothing was counted: no process of the command imported Triton where it could be watched")
        _say_if_unwritten(census.recorded)
        leave(directory)
    else:
        total = Counted.by(reader).since(before)
        others = f", with other processes that count in {path}" if shared else ""
        _say(f"{total}{others}{'' if serving is None else f'; metrics were at {serving.url}'}")
        if census.replayed is not None:
            _say_if_unused(census.replayed, total)
        if census.recorded is not None:
            _record(path, census.recorded)
        _leave(directory, ending, "processes" if shared else "children of the command")
    return ending


def _say_if_unused(census: Path, total: Counted) -> None:
    """Without `ready()` a census does nothing, which nobody would notice. What failed in it is in the program's log."""
    if not total.prewarms.total():
        _say(f"{census} was never replayed: nobody called tritonprobe.ready()")
    elif total.prewarms["no_device"] and not (total.replays() or total.prewarms["failed"]):
        _say(f"{census} was never replayed: where tritonprobe.ready() was called, no device was in use yet")


def _say_if_unwritten(target: Path | None) -> None:
    """A census of nothing is not worth the one that may be there."""
    if target is not None:
        before = "; it is what it was before" if target.exists() else ""
        _say(f"--record {target}: nothing was recorded, so no census was written{before}")


def _record(directory: Path, target: Path) -> None:
    found = collect(directory)
    if found.is_of_nothing:
        _say_if_unwritten(target)
        return
    try:
        found.save(target)
    except OSError as error:
        _say(f"--record {target}: {error.strerror}; no census was written")
        return
    variants, launches = counted(len(found.entries), "variant"), counted(sum(found.launches.values()), "launch")
    _say(f"{target}: {variants}, {launches} recorded")


def _supervise(
    command: Command, env: Mapping[str, str], signals: Signals, on_other: Callable[[int], None] | None = None
) -> Ending:
    try:
        return supervise(command.program, command.words, env, signals, on_other or (lambda _: None))
    except OSError as error:
        _say(f"{command.words[0]}: cannot be run: {error.strerror}")
        return Ending(NOT_FOUND if error.errno == errno.ENOENT else NOT_RUNNABLE, crashed=False)


def _banner(command: Command, path: Path, serving: Sidecar | None) -> str:
    where = (
        f"no metrics are served; the command runs, and its numbers are in {path}"
        if serving is None
        else f"metrics at {serving.url}"
    )
    flag = refusal(command.words, command.program)
    switch = signs.asked(path)
    if switch is not None and switch.state == "off":
        return f"{where}; {path} is switched off, so nothing is watched: tritonprobe on {path}"
    if flag is not None:
        return f"{where}; {flag} lets nobody in: of this command, only its children are watched"
    return f"{where}; Triton is watched in this command and its children, by a sitecustomize on PYTHONPATH"


def _files(path: Path) -> tuple[object, ...]:
    """What changes when a process has counted in the directory."""
    with suppress(OSError, FormatError):
        return generation(path), *ledger_files(path)
    return ()


def _leave(directory: Directory, ending: Ending, who: str) -> None:
    """Removes a fresh directory, unless it is evidence of a crash, or somebody, `who`, still counts in it."""
    if is_counting(directory.path):
        _say(f"{who} still count in {directory.path}: tritonprobe serve {directory.path}")
    elif directory.fresh and ending.crashed:
        with suppress(OSError, FormatError):
            fold(directory.path, above=0)  # a few KiB: a program that crashes again and again must not fill the memory
        _say(f"the command crashed; its numbers stay: tritonprobe serve {directory.path}")
    else:
        leave(directory)


def _say(sentence: str) -> None:
    with suppress(OSError):  # nobody listens any more, which is no reason to fail
        say(f"tritonprobe: {sentence}", err=True)
