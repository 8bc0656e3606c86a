"""What the verbs that measure share: their options, what can go wrong, and how they end. Measures nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from tritonprobe.cli.group import BadInput, Complaint, say, say_json
from tritonprobe.files import is_special, write_whole
from tritonprobe.settings import SettingError

with_device = click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, or compile-only:cuda:90.", metavar="DEVICE"
)
with_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
with_output = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the JSON document to FILE as well.",
    metavar="FILE",
)


class Failed(Complaint):
    """A measurement that could not be finished."""


def device_for(device: str, output: Path | None) -> str | None:
    """The compile-only device to use, or None for the GPU; before minutes are spent on what cannot be written."""
    from tritonprobe.proving.document import pick_device

    check_output(output)
    try:
        return pick_device(device)
    except SettingError as error:
        raise BadInput(str(error)) from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def need_gpu(verb: str, output: Path | None) -> None:
    """For a verb that measures GPUs only. Raises BadInput."""
    from tritonprobe.proving.document import sees_gpu

    check_output(output)
    try:
        if not sees_gpu():
            raise BadInput(f"{verb} needs a GPU, and torch sees no CUDA device")
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _missing(error: ModuleNotFoundError) -> BadInput:
    return BadInput(f"bench needs {error.name}: pip install {error.name}")


def check_output(output: Path | None) -> None:
    """Raises BadInput if the document could not be written there."""
    if output is None:
        return
    if is_special(output):
        if not os.access(output, os.W_OK):
            raise BadInput(f"--output {output}: cannot be written to")
        return
    folder = Path(os.path.realpath(output)).parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise BadInput(f"--output {output}: {folder} is no folder that can be written to")


@contextmanager
def measuring() -> Iterator[None]:
    """While it measures: what fails ends the verb with a sentence."""
    from tritonprobe.proving.processes import MeasuringError

    try:
        yield
    except MeasuringError as error:
        raise Failed(str(error)) from None


def progress(text: str) -> None:
    say(text, err=True)


def finish(
    ctx: click.Context, made: dict[str, Any], good: bool, as_json: bool, output: Path | None, show: Callable[[], None]
) -> NoReturn:
    """Writes the document where it is wanted, shows the result to people or as JSON, and ends the verb."""
    _leave(made, output)
    if as_json:
        say_json(made)
    else:
        show()
    ctx.exit(0 if good else 1)


def _leave(made: dict[str, Any], output: Path | None) -> None:
    """Writes the file, complete or not at all."""
    if output is None:
        return
    try:
        write_whole(output, [json.dumps(made, indent=1), "\n"])
    except OSError as error:
        raise Failed(f"--output {output}: {error.strerror}") from None
