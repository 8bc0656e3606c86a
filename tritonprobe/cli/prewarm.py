"""``tritonprobe prewarm CENSUS``: compile a census's variants into Triton's cache folder, before a server needs them.

With ``--target`` it needs no GPU (an image build); without, it uses the machine's, and builds launchers and loads
modules as well. Reads flags, shows progress and the result; the work is `tritonprobe.prewarming`'s.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tritonprobe.cli.census import load, save
from tritonprobe.cli.group import INTERRUPTED, BadInput, own_stdout, say, say_json
from tritonprobe.plain import plain

if TYPE_CHECKING:
    from tritonprobe.prewarming import Prewarmed, Skipped
    from tritonprobe.prewarming.run import Progress
    from tritonprobe.shapes.census import Census

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """``60s``, ``5m``, ``90``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", value)
    if match is None or float(match[1]) <= 0:
        raise click.BadParameter(f"{value!r}: expected a time above 0, such as 60s or 5m")
    return float(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("path", metavar="CENSUS", type=click.Path(path_type=Path))
@click.option("--target", help="Compile for this device without a GPU: cuda:80, cuda:90 or cuda:100.")
@click.option("--budget", callback=_seconds, metavar="TIME", help="Leave out what does not fit into this, e.g. 60s.")
@click.option(
    "--cover",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.999,
    show_default=True,
    help="Share of the recorded stall to save.",
)
@click.option("--threads", type=click.IntRange(1, 256), help="Compile so many at once.  [default: cores, up to 16]")
@click.option(
    "--allow",
    "modules",
    multiple=True,
    metavar="PACKAGE",
    help="Import this package to find the census's kernels; may be repeated.",
)
@click.option("--tune", is_flag=True, help="Let autotuners choose here and now; on a GPU that does not serve.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the census with what was chosen."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the summary.")
@click.pass_context
def prewarm(
    ctx: click.Context,
    path: Path,
    target: str | None,
    budget: float | None,
    cover: float,
    threads: int | None,
    modules: tuple[str, ...],
    tune: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compile what a CENSUS recorded, into Triton's cache folder (TRITON_CACHE_DIR).

    Kernels are imported only from the packages named with --allow; what these print goes to standard error. What is
    stale is named and skipped. Ctrl-C keeps what is done (exit code 130). Exit code 1: nothing of the census can be
    prewarmed here.
    """
    census = load(path)
    if tune and target is not None:
        raise BadInput("--tune needs a GPU, and --target does without: leave one of them out")
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInput(f"--output {output}: {output.absolute().parent} is no folder")
    with ExitStack() as stack:
        stack.enter_context(own_stdout())
        _device(stack, target, tune)  # first: a module may ask Triton for its device when it is imported
        _import(modules)
        crashed: list[Skipped] = []
        if tune:
            from tritonprobe.cli.tuning_child import choose

            census, crashed = choose(census, modules, threads)
        progress = stack.enter_context(_bar())
        result = _run(census, cover, budget, threads, modules, progress)
        # What the tuning skipped, and this did not, left a kernel without a winner.
        result.skipped += [replace(skipped, winner=True) for skipped in crashed if skipped not in result.skipped]
        if output is not None:
            save(census, output)
    if as_json:
        say_json(asdict(result))
    else:
        _print(result)
    if result.stopped == "interrupt":
        ctx.exit(INTERRUPTED)
    ctx.exit(1 if result.planned and not (result.replayed or result.there_before) else 0)


def _import(modules: tuple[str, ...]) -> None:
    """Imports what was allowed now: a kernel's module may need its package's start.

    Also from the working directory, as `python -m` does, which is how the program itself is started.
    """
    here = str(Path.cwd())
    if modules and not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a module may be a program
            raise BadInput(f"--allow {name}: cannot be imported ({type(error).__name__}: {error})") from None


def _device(stack: ExitStack, target: str | None, tune: bool) -> None:
    from tritonprobe.settings import SettingError
    from tritonprobe.testing import compile_only

    if target is None:
        from tritonprobe.adapter.device import has_gpu
        from tritonprobe.runtime import current

        device = current().settings.device
        if tune and device is not None:
            raise BadInput(f"--tune measures on a GPU, and TRITONPROBE_DEVICE={device} is none: unset it")
        if device is None and not has_gpu():
            raise BadInput("this machine has no GPU that torch can use: name the device with --target, e.g. cuda:90")
        return
    try:
        stack.enter_context(compile_only(target))
    except SettingError as error:
        raise BadInput(f"--target {target}: {error}") from None


def _run(
    census: Census,
    cover: float,
    budget: float | None,
    threads: int | None,
    modules: tuple[str, ...],
    progress: Progress,
) -> Prewarmed:
    from tritonprobe.adapter.core import UnsupportedTriton
    from tritonprobe.runtime import current

    try:
        return current().prewarm(
            census,
            cover=cover,
            budget=budget,
            threads=threads,
            modules=modules,
            expand=True,
            progress=progress,
        )
    except UnsupportedTriton as error:
        raise BadInput(str(error)) from None
    except RuntimeError as error:  # Triton's own: no driver
        raise BadInput(f"no device: {error}; name one with --target, e.g. cuda:90") from None


def _print(result: Prewarmed) -> None:
    from tritonprobe.prewarming.skipped import told

    for line in told(result.skipped):
        say(line)
    more = f"; {result.configurations:,} for autotuners that are yet to choose" if result.configurations else ""
    coverage = "" if result.coverage is None else f"; {result.coverage:.1%} of the recorded launches are covered"
    say(f"{result.summary()}, {result.left_out:,} left out{more}{coverage}")
    if result.stopped is not None:
        say(f"stopped by {'Ctrl-C' if result.stopped == 'interrupt' else 'the deadline'}; what is done is kept")


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("prewarming", total=None)
        yield lambda done, total, kernel: bar.update(task, completed=done, total=total, description=plain(kernel)[-40:])
