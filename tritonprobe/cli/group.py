"""How verbs are found, and how they say that their input is bad. Knows click, and no verb."""

from __future__ import annotations

import atexit
import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, TextIO

import click

from tritonprobe.plain import plain

INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell has it."""
# What writing to a stream fails with; verbs see to their files themselves, and click to a pipe that nobody reads.
_UNWRITABLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


class Complaint(click.ClickException):
    """What went wrong: one line on standard error, whatever names it repeats, and exit code 1."""

    def format_message(self) -> str:
        return plain(self.message)


class BadInput(Complaint):
    """Input that cannot be used: exit code 2."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: where it is (``module:object``), and its line in the help."""

    name: str
    place: str
    help: str

    def load(self) -> click.Command:
        module, _, attribute = self.place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class VerbGroup(click.Group):
    """A group that loads a verb when it is called, and puts each usage error on one line."""

    def __init__(self, name: str, *, verbs: Iterable[Verb], **options: Any) -> None:
        super().__init__(name, **options)
        self._verbs = {verb.name: verb for verb in verbs}

    # click passes a context to each of these three; none needs it.

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        verb = self._verbs.get(cmd_name)
        return None if verb is None else verb.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(verb.name, verb.help) for verb in self._verbs.values()])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


def say(sentence: str, err: bool = False) -> None:
    """One line, whatever names it repeats."""
    click.echo(plain(sentence), err=err)


def say_json(document: object) -> None:
    """What ``--json`` prints: one document, on standard output, for people to read as well."""
    click.echo(json.dumps(document, indent=1))


@contextmanager
def own_stdout() -> Iterator[None]:
    """For a verb that imports a user's modules: what they print meanwhile, or at exit, goes to standard error."""
    ours, errors = sys.stdout, sys.stderr
    with ExitStack() as stack:
        if ours is not None and errors is not None:  # None: closed by who started us
            stack.enter_context(redirect_stdout(errors))
            with suppress(OSError, ValueError):  # a stream that is no file
                _redirect(stack, ours, errors)
        yield


def _redirect(stack: ExitStack, ours: TextIO, errors: TextIO) -> None:
    """Also what is printed by no means of Python's."""
    out, err = ours.fileno(), errors.fileno()
    kept = os.dup(out)
    stack.callback(os.close, kept)
    os.dup2(err, out)
    stack.callback(os.dup2, kept, out)
    stack.callback(ours.flush)  # of who kept the stream itself
    stack.callback(atexit.register, os.dup2, err, out)  # the last to register is the first to be called


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns click's usage errors, which come with lines of usage, into `BadInput`; a full disk into a `Complaint`.

    Ctrl-C, wherever it strikes, ends the verb quietly; click would say "Aborted!", and exit with 1.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _give_up(sys.stdout)
        raise Complaint(f"standard output cannot be written to: {error.strerror}") from None
    except click.exceptions.NoArgsIsHelpError:  # a group without a verb: the help is the message
        raise
    except click.UsageError as error:
        raise BadInput(" ".join(error.format_message().split())) from error


def _give_up(stream: TextIO) -> None:
    """What a stream still holds goes nowhere: at exit Python would try once more to write it, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """What ``--version`` calls."""
    if not value or ctx.resilient_parsing:
        return
    try:
        click.echo(f"tritonprobe {metadata.version('tritonprobe')}")
    except metadata.PackageNotFoundError:
        raise BadInput(
            "no version: this tritonprobe runs from its sources and is not installed (pip install .)"
        ) from None
    ctx.exit()
