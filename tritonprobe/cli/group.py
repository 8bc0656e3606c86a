"""How verbs are found, and how they say that their input is bad. Knows click, and no verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import click


class BadInput(click.ClickException):
    """Input that cannot be used: one line on standard error, exit code 2."""

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


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns click's usage errors, which come with lines of usage, into `BadInput`."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # a group without a verb: the help is the message
        raise
    except click.UsageError as error:
        raise BadInput(" ".join(error.format_message().split())) from error


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
