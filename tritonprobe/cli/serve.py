"""``tritonprobe serve DIR``: the exporter process of one ledger directory.

Prints the URL of its metrics as its first line, once they are there, and serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from tritonprobe.cli.group import BadInput
from tritonprobe.export.exporter import exporting, is_counting
from tritonprobe.ledger.directory import DirectoryError
from tritonprobe.settings import SettingError, Settings

END = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS = 2.0
"""How often an exporter that was started by `run` looks whether `run` is still there."""

Port = click.IntRange(0, 65_535)


def served_at(addr: str | None, port: int | None) -> Settings:
    """The environment's settings, with what the command line says. Raises BadInput."""
    try:
        settings = Settings.from_env()
    except SettingError as error:
        raise BadInput(str(error)) from None
    return settings.with_(addr=addr or settings.addr, port=settings.port if port is None else port)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--port", type=Port, help="Where to listen; 0: any free port.  [default: TRITONPROBE_PORT or 9464]")
@click.option("--addr", help="On which address.  [default: TRITONPROBE_ADDR or 127.0.0.1]")
@click.option("--starter", type=int, hidden=True, help="End once this process is gone and nobody counts in DIR.")
def serve(directory: Path, port: int | None, addr: str | None, starter: int | None) -> None:
    """Serves the numbers that the programs of a ledger directory (TRITONPROBE_DIR) count.

    Paths: /metrics, /ready, /census and /report. It reads their files, so it answers while they compile, hang or are
    dead.
    """
    settings = served_at(addr, port)
    # Every thread is born with them blocked: they wait for us to ask.
    signal.pthread_sigmask(signal.SIG_BLOCK, END)
    try:
        with exporting(directory, settings) as server:
            click.echo(f"{server.url}/metrics")
            _wait(directory, starter)
    except (DirectoryError, OSError) as error:
        raise BadInput(str(error)) from None


def _wait(directory: Path, starter: int | None) -> None:
    if starter is None:
        signal.sigwait(END)
        return
    while signal.sigtimedwait(END, LOOK_SECONDS) is None:
        if os.getppid() != starter and not is_counting(directory):
            return
