"""`tritonprobe bench cold` and `bench overhead`: what tritonprobe proves about itself, on this machine.

Reads flags, shows progress and results; the measuring is `tritonprobe.proving`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tritonprobe.cli.group import BadInput, Complaint, say
from tritonprobe.files import is_special, write_whole
from tritonprobe.settings import SettingError

INTERRUPTED = 130

_device = click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, or compile-only:cuda:90.", metavar="DEVICE"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
_output = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the JSON document to FILE as well.",
    metavar="FILE",
)


class Failed(Complaint):
    """A measurement that could not be finished."""


@click.command(short_help="Hold tritonprobe's account of each kind of cold call against the clock.")
@_device
@click.option(
    "--repeat",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Times, each in a fresh state.",
    metavar="N",
)
@_json
@_output
@click.pass_context
def cold(ctx: click.Context, device: str, repeat: int, as_json: bool, output: Path | None) -> None:
    """Meet each kind of cold call in a fresh process, and compare tritonprobe's phases with the caller's own clock.

    What no phase names may be at most 5% of the caller's time, or 1 ms. Exit code 1: in the median of a row it is more,
    or the compile tier is not the number of binaries that Triton wrote.
    """
    from tritonprobe.cli import proofs_report
    from tritonprobe.proving import cold as measurement
    from tritonprobe.proving.document import command_line, document

    if find_spec("tritonprobe_kernels") is None:
        raise BadInput(
            "bench cold launches the kernels of tritonprobe_kernels, which is not installed beside tritonprobe"
        )
    options = {"--device": device, "--repeat": repeat, "--json": as_json, "--output": output}
    chosen = _checked(device, output)
    with _failing(ctx):
        found = measurement.measure(repeat, chosen, _say)
    made = document("cold", command_line("bench cold", options), found.made, measurement.body(found))
    _leave(made, output)
    if as_json:
        click.echo(json.dumps(made, indent=1))
    else:
        proofs_report.print_cold(found)
    ctx.exit(0 if found.good else 1)


@click.command(short_help="Measure what watching costs a hot launch.")
@_device
@click.option(
    "--pairs", default=200, show_default=True, type=click.IntRange(min=2), help="Of rounds to compare.", metavar="N"
)
@click.option("--launches", default=1000, show_default=True, type=click.IntRange(min=10), help="A round.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the rounds' order and of the intervals.")
@_json
@_output
@click.pass_context
def overhead(
    ctx: click.Context, device: str, pairs: int, launches: int, seed: int, as_json: bool, output: Path | None
) -> None:
    """Launch two kernels hot, with and without tritonprobe in turn, and print the difference with its 95% interval.

    Other ways to watch launches are measured beside it, with a fifth of the pairs. Exit code 1: two equal rounds may
    differ by more than 1%, so that nothing can be said (measure longer, or on a quieter machine); or, on a GPU, the
    cost is higher than tritonprobe promises.
    """
    from tritonprobe.cli import proofs_report
    from tritonprobe.proving import overhead as measurement
    from tritonprobe.proving.document import command_line, document

    options = {
        "--device": device,
        "--pairs": pairs,
        "--launches": launches,
        "--seed": seed,
        "--json": as_json,
        "--output": output,
    }
    chosen = _checked(device, output)
    with _failing(ctx):
        found = measurement.measure(pairs, launches, seed, chosen, _say)
    body = measurement.body(found, launches, seed)
    made = document("overhead", command_line("bench overhead", options), found.made, body)
    _leave(made, output)
    if as_json:
        click.echo(json.dumps(made, indent=1))
    else:
        proofs_report.print_overhead(found)
    ctx.exit(0 if found.good else 1)


@click.command(short_help="Measure how long a scrape of many series takes.")
@click.option("--series", default=10_000, show_default=True, type=click.IntRange(1000, 100_000), metavar="N")
@click.option("--repeat", default=50, show_default=True, type=click.IntRange(min=2), help="Scrapes.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the interval.")
@_json
@_output
@click.pass_context
def scrape(ctx: click.Context, series: int, repeat: int, seed: int, as_json: bool, output: Path | None) -> None:
    """Fill a ledger, serve it by an exporter process, and time whole scrapes of it over loopback.

    Exit code 1: the median, with its 95% interval, is not below 50 ms.
    """
    from tritonprobe.proving import scrape as measurement
    from tritonprobe.proving.document import command_line, described, document

    _checked_output(output)
    options = {"--series": series, "--repeat": repeat, "--seed": seed, "--json": as_json, "--output": output}
    with _failing(ctx):
        found = measurement.measure(series, repeat, seed)
    made = document("scrape", command_line("bench scrape", options), described(), measurement.body(found, series, seed))
    _leave(made, output)
    if as_json:
        click.echo(json.dumps(made, indent=1))
    else:
        ms = [1e3 * seconds for seconds in (found.interval.median, found.interval.low, found.interval.high)]
        say(f"{found.lines:,} samples, {found.size:,} bytes: {ms[0]:.1f} ms [{ms[1]:.1f}, {ms[2]:.1f}] a scrape")
    ctx.exit(0 if found.good else 1)


@click.command(short_help="Measure what request() and step() cost an engine's iteration.")
@click.option("--rounds", default=60, show_default=True, type=click.IntRange(min=2), help="Of each batch.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the intervals.")
@_json
@_output
@click.pass_context
def steps(ctx: click.Context, rounds: int, seed: int, as_json: bool, output: Path | None) -> None:
    """Time empty steps over batches of live requests whose traces are sampled out, as a scheduler would make them.

    With opentelemetry-sdk installed a tracer that samples nothing is subscribed as well. A batch is the same list for
    all steps, or rebuilt with the same requests, or changing: one leaves and one comes with each step. Exit code 1: a
    step over a batch of the first two kinds takes more than 5 us, at the upper end of its 95% interval.
    """
    from tritonprobe.export.otel_off import listener
    from tritonprobe.proving import steps as measurement
    from tritonprobe.proving.document import command_line, described, document

    _checked_output(output)
    options = {"--rounds": rounds, "--seed": seed, "--json": as_json, "--output": output}
    with _failing(ctx):
        found = measurement.measure(rounds, seed, listener)
    made = document("steps", command_line("bench steps", options), described(), measurement.body(found, rounds, seed))
    _leave(made, output)
    if as_json:
        click.echo(json.dumps(made, indent=1))
    else:
        for each in found.batches:
            us = each.interval
            shape = f"{each.size:4} requests, {each.kind + ':':9}"
            say(f"{shape} {us.median:6.2f} us [{us.low:.2f}, {us.high:.2f}] a step, {each.how}")
    ctx.exit(0 if found.good else 1)


@click.command(short_help="Measure how much sooner a tuned kernel is ready when it is prewarmed.")
@_device
@click.option("--side", default=1024, show_default=True, type=click.IntRange(64, 16_384), help="Of the matrices.")
@_json
@_output
@click.pass_context
def prewarm(ctx: click.Context, device: str, side: int, as_json: bool, output: Path | None) -> None:
    """Tune a matrix product of 24 configurations twice, nothing compiled: as Triton does, and by a prewarm.

    Exit code 1: the prewarm took more than 0.35 of Triton's own first call, a call after it was cold, or its winner is
    more than 2% slower than the best of the 24.
    """
    from tritonprobe.proving import prewarm as measurement
    from tritonprobe.proving.document import command_line, document

    options = {"--device": device, "--side": side, "--json": as_json, "--output": output}
    chosen = _checked(device, output)
    with _failing(ctx):
        found = measurement.measure(side, chosen, _say)
    made = document("prewarm", command_line("bench prewarm", options), found.made, measurement.body(found))
    _leave(made, output)
    if as_json:
        click.echo(json.dumps(made, indent=1))
    else:
        slower = "nothing was measured" if found.slower is None else f"its winner at {found.slower:.3f} of the best"
        say(
            f"Triton's own first call {found.serial:.2f} s; prewarmed in {found.prewarmed:.2f} s, "
            f"{found.share:.2f} of it, by {found.threads} threads; {slower}; "
            f"the first call then {found.first_call * 1e3:.2f} ms, {found.cold_after} cold"
        )
    ctx.exit(0 if found.good else 1)


def _checked(device: str, output: Path | None) -> str | None:
    """The compile-only device to use, or None for the GPU; before minutes are spent on what cannot be written."""
    from tritonprobe.proving.document import pick_device

    _checked_output(output)
    try:
        return pick_device(device)
    except SettingError as error:
        raise BadInput(str(error)) from None
    except ModuleNotFoundError as error:
        raise BadInput(f"bench needs {error.name}: pip install 'tritonprobe[torch]'") from None


def _checked_output(output: Path | None) -> None:
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
def _failing(ctx: click.Context) -> Iterator[None]:
    from tritonprobe.proving.processes import MeasuringError

    try:
        yield
    except MeasuringError as error:
        raise Failed(str(error)) from None
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _say(text: str) -> None:
    say(text, err=True)


def _leave(made: dict[str, Any], output: Path | None) -> None:
    """Writes the file, complete or not at all."""
    if output is None:
        return
    try:
        write_whole(output, [json.dumps(made, indent=1), "\n"])
    except OSError as error:
        raise Failed(f"--output {output}: {error.strerror}") from None
