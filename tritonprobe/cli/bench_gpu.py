"""`tritonprobe bench gpu`: what GPU times cost and how good they are, on this machine's GPU.

Reads flags, shows progress and results; the measuring is `tritonprobe.proving`'s.
"""

from __future__ import annotations

from pathlib import Path

import click

from tritonprobe.cli.group import BadInput, say
from tritonprobe.cli.measuring import finish, measuring, need_gpu, progress, with_json, with_output
from tritonprobe.proving.gpu import PARTS
from tritonprobe.wording import counted


@click.command(short_help="Measure what GPU times cost, and how good they are.")
@click.option("--pairs", default=200, show_default=True, type=click.IntRange(min=10), help="Of rounds to compare.")
@click.option("--seed", default=0, show_default=True, help="Of the rounds' order and of the intervals.")
@click.option(
    "--part", "parts", multiple=True, help=f"Only this of {', '.join(PARTS)}; may be given again.", metavar="PART"
)
@with_json
@with_output
@click.pass_context
def gpu(ctx: click.Context, pairs: int, seed: int, parts: tuple[str, ...], as_json: bool, output: Path | None) -> None:
    """Launch and replay with and without windows of GPU times, check their attribution, and tune by either clock.

    Exit code 1: windows cost more than promised, a record stood under a wrong name, or a part could not be measured.
    """
    from tritonprobe.proving import gpu as measurement
    from tritonprobe.proving.document import command_line, document

    wrong = [part for part in parts if part not in PARTS]
    if wrong:
        raise BadInput(f"--part {wrong[0]}: expected one of {', '.join(PARTS)}")
    need_gpu("bench gpu", output)
    with measuring():
        found = measurement.measure(pairs, seed, parts or PARTS, progress)
    options = {"--pairs": pairs, "--seed": seed, "--json": as_json, "--output": output}
    line = " ".join([command_line("bench gpu", options), *(f"--part {part}" for part in parts)])
    made = document("gpu", line, found.made, measurement.body(found))

    def show() -> None:
        for name, (difference, ratio) in found.compared().items():
            say(
                f"{name}: {difference.median:+.2f} us [{difference.low:+.2f}, {difference.high:+.2f}], "
                f"{ratio.median:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
            )
        for name, share in found.shares().items():
            say(f"windows, {name}: {share.median:.4%} of the time [{share.low:.4%}, {share.high:.4%}]")
        for name, most in found.by_default().items():
            say(f"by default, {name}: at most {most:.4f}")
        consumer = found.consumer_us()
        if consumer is not None:
            say(f"consumer: {consumer:.3f} us a record")
        slower = found.slower_than_best()
        for name, times in found.steady().items():
            quality = f", at most {slower[name]:.2%} slower than the best" if name in slower else ""
            say(f"tuner: {name}: the same winner in {times} of ten{quality}")
        for name, setting in found.parts.get("exact", {}).items():
            records = counted(setting["records"], "record")
            say(
                f"exact: {name}: {setting['right']} right, {setting['wrong']} wrong of {records}; "
                f"given up: {setting['dropped']}; windows: {setting['windows']}"
            )
        for part, why in found.failed.items():
            say(f"failed: {part}: {why}")

    finish(ctx, made, found.good, as_json, output, show)
