"""`tritonprobe bench cold`, `overhead`, `scrape`, `steps` and `prewarm`: what tritonprobe proves about itself, here.

Reads flags and shows results; the measuring is `tritonprobe.proving`'s, and how such a verb ends `measuring`'s.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from tritonprobe.cli.group import BadInput, say
from tritonprobe.cli.measuring import (
    check_output,
    device_for,
    finish,
    measuring,
    progress,
    with_device,
    with_json,
    with_output,
)
from tritonprobe.wording import counted


@click.command(short_help="Hold tritonprobe's account of each kind of cold call against the clock.")
@with_device
@click.option(
    "--repeat",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Times, each in a fresh state.",
    metavar="N",
)
@with_json
@with_output
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
    chosen = device_for(device, output)
    with measuring():
        found = measurement.measure(repeat, chosen, progress)
    made = document("cold", command_line("bench cold", options), found.made, measurement.body(found))
    finish(ctx, made, found.good, as_json, output, lambda: proofs_report.print_cold(found))


@click.command(short_help="Measure what watching costs a hot launch.")
@with_device
@click.option(
    "--pairs", default=200, show_default=True, type=click.IntRange(min=2), help="Of rounds to compare.", metavar="N"
)
@click.option("--launches", default=1000, show_default=True, type=click.IntRange(min=10), help="A round.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the rounds' order and of the intervals.")
@with_json
@with_output
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
    chosen = device_for(device, output)
    with measuring():
        found = measurement.measure(pairs, launches, seed, chosen, progress)
    body = measurement.body(found, launches, seed)
    made = document("overhead", command_line("bench overhead", options), found.made, body)
    finish(ctx, made, found.good, as_json, output, lambda: proofs_report.print_overhead(found))


@click.command(short_help="Measure how long a scrape of many series takes.")
@click.option("--series", default=10_000, show_default=True, type=click.IntRange(1000, 100_000), metavar="N")
@click.option("--repeat", default=50, show_default=True, type=click.IntRange(min=2), help="Scrapes.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the interval.")
@with_json
@with_output
@click.pass_context
def scrape(ctx: click.Context, series: int, repeat: int, seed: int, as_json: bool, output: Path | None) -> None:
    """Fill a ledger, serve it by an exporter process, and time whole scrapes of it over loopback.

    Exit code 1: the median, with its 95% interval, is not below 50 ms.
    """
    from tritonprobe.proving import scrape as measurement
    from tritonprobe.proving.document import command_line, described, document

    check_output(output)
    options = {"--series": series, "--repeat": repeat, "--seed": seed, "--json": as_json, "--output": output}
    with measuring():
        found = measurement.measure(series, repeat, seed)
    made = document("scrape", command_line("bench scrape", options), described(), measurement.body(found, series, seed))

    def show() -> None:
        ms = [1e3 * seconds for seconds in (found.interval.median, found.interval.low, found.interval.high)]
        say(f"{found.lines:,} samples, {found.size:,} bytes: {ms[0]:.1f} ms [{ms[1]:.1f}, {ms[2]:.1f}] a scrape")

    finish(ctx, made, found.good, as_json, output, show)


@click.command(short_help="Measure what step() costs an engine's iteration.")
@click.option("--rounds", default=60, show_default=True, type=click.IntRange(min=2), help="Of each batch.", metavar="N")
@click.option("--seed", default=0, show_default=True, help="Of the intervals.")
@with_json
@with_output
@click.pass_context
def steps(ctx: click.Context, rounds: int, seed: int, as_json: bool, output: Path | None) -> None:
    """Time empty steps over batches of live requests whose traces are sampled out, as a scheduler would make them.

    With opentelemetry-sdk installed a tracer that samples nothing is subscribed as well. A batch is the same list for
    all steps, or rebuilt with the same requests, or with a number of tokens beside each, or one leaves and one comes
    with each step: at the ends, or in its place, or those behind it move up. Exit code 1: a step over some batch takes
    more than 5 us, at the upper end of its 95% interval.
    """
    from tritonprobe.export.otel_off import listener
    from tritonprobe.proving import steps as measurement
    from tritonprobe.proving.document import command_line, described, document

    check_output(output)
    options = {"--rounds": rounds, "--seed": seed, "--json": as_json, "--output": output}
    with measuring():
        found = measurement.measure(rounds, seed, listener)
    made = document("steps", command_line("bench steps", options), described(), measurement.body(found, rounds, seed))

    def show() -> None:
        for each in found.batches:
            us = each.interval
            shape = f"{counted(each.size, 'request'):>13}, {each.kind + ':':10}"
            say(f"{shape} {us.median:6.2f} us [{us.low:.2f}, {us.high:.2f}] a step, {each.how}")

    finish(ctx, made, found.good, as_json, output, show)


@click.command(short_help="Measure how much sooner a tuned kernel is ready when it is prewarmed.")
@with_device
@click.option("--side", default=1024, show_default=True, type=click.IntRange(64, 16_384), help="Of the matrices.")
@with_json
@with_output
@click.pass_context
def prewarm(ctx: click.Context, device: str, side: int, as_json: bool, output: Path | None) -> None:
    """Tune a matrix product of 24 configurations twice, nothing compiled: as Triton does, and by a prewarm.

    Exit code 1: the prewarm took more than 0.35 of Triton's own first call, a call after it was cold, or its winner is
    more than 2% slower than the best of the 24.
    """
    from tritonprobe.proving import prewarm as measurement
    from tritonprobe.proving.document import command_line, document

    options = {"--device": device, "--side": side, "--json": as_json, "--output": output}
    chosen = device_for(device, output)
    with measuring():
        found = measurement.measure(side, chosen, progress)
    made = document("prewarm", command_line("bench prewarm", options), found.made, measurement.body(found))

    def show() -> None:
        slower = "nothing was measured" if found.slower is None else f"its winner at {found.slower:.3f} of the best"
        say(
            f"Triton's own first call {found.serial:.2f} s; prewarmed in {found.prewarmed:.2f} s, "
            f"{found.share:.2f} of it, by {found.threads} threads; {slower}; "
            f"the first call then {found.first_call * 1e3:.2f} ms, {found.cold_after} cold"
        )

    finish(ctx, made, found.good, as_json, output, show)
