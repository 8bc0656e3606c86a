"""`tritonprobe bench`: `serve` replays a trace against a server and prints what its users would have seen; `trace`
makes a trace up. Reads flags, shows progress and results; the measuring is `tritonprobe.traffic`'s. The other
subcommands, which measure tritonprobe itself, are in `proofs`.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tritonprobe.cli import bench_gpu, proofs
from tritonprobe.cli.group import INTERRUPTED, BadInput, say, say_json
from tritonprobe.settings import SettingError
from tritonprobe.traffic.generator import ARRIVALS, Arrivals, generate
from tritonprobe.traffic.latency import Outcome, Replay, Summary
from tritonprobe.traffic.trace import Trace, TraceError, json_lines, read_trace, write_jsonl
from tritonprobe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tritonprobe.traffic.client import Load


@click.group()
def bench() -> None:
    """Replay a trace of requests against a server, or make one up; measure what tritonprobe names and costs."""


bench.add_command(proofs.cold)
bench.add_command(bench_gpu.gpu)
bench.add_command(proofs.overhead)
bench.add_command(proofs.prewarm)
bench.add_command(proofs.scrape)
bench.add_command(proofs.steps)


@bench.command(short_help="Replay a trace against a server and print its latencies.")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--url", required=True, help="The server, e.g. http://127.0.0.1:8000; it speaks OpenAI's /v1/completions."
)
@click.option("--speed", default=1.0, show_default=True, help="Divides the trace's times: 2 sends twice as fast.")
@click.option("--limit", type=click.IntRange(min=1), help="Send only the first N requests.", metavar="N")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows out, and count them, instead of refusing the trace.")
@click.option("--model", help="The model to ask for.  [default: the first that the server lists]")
@click.option(
    "--vocab", default=1000, show_default=True, help="Prompts are token ids from 1 up to, not including, this."
)
@click.option("--max-prompt", type=int, help="Cut longer prompts to N tokens.", metavar="N")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds after which a request has failed.")
@click.option(
    "--seed", default=0, show_default=True, help="Of the prompts; the same prompts again may meet a prefix cache."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@click.pass_context
def serve(
    ctx: click.Context,
    trace: str,
    url: str,
    speed: float,
    limit: int | None,
    skip_bad: bool,
    model: str | None,
    vocab: int,
    max_prompt: int | None,
    timeout: float,
    seed: int,
    as_json: bool,
) -> None:
    """Send the requests of TRACE to a server, at their times, and print TTFT, TPOT and end-to-end percentiles.

    TRACE is an Azure LLM trace (CSV with TIMESTAMP, ContextTokens, GeneratedTokens) or JSON lines with t (seconds),
    prompt_tokens and output_tokens. Prompts are random token ids of that length; answers are made to have the trace's
    length. Exit code 1: requests failed; 2: bad input, or no server; 130: Ctrl-C, after a report of what was measured.
    """
    try:
        from tritonprobe.traffic import client
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise BadInput("bench serve needs httpx: pip install httpx sniffio") from None
    from tritonprobe.cli import bench_report

    try:
        load = client.Load(url, model, speed, vocab, max_prompt, timeout, seed=seed)
        requests = read_trace(trace, skip_bad=skip_bad, limit=limit)
        models = asyncio.run(client.reach(load))
    except (SettingError, TraceError, client.UnreachableError) as error:
        raise BadInput(str(error)) from None
    if load.model is None and models:
        load = replace(load, model=models[0])
    with _progress(requests) as on_outcome:
        replayed = asyncio.run(_replay(requests, load, on_outcome))
    summary = Summary.of(replayed)
    if as_json:
        say_json(bench_report.document(requests, load, replayed, summary))
    else:
        bench_report.print_table(requests, load, summary)
    if replayed.interrupted:
        ctx.exit(INTERRUPTED)
    ctx.exit(1 if summary.failed else 0)


@bench.command("trace", short_help="Make a trace up.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same trace.")
@click.option("--requests", default=100, show_default=True, help="How many.", metavar="N")
@click.option("--rate", type=float, help="Requests a second, in the long run.  [default: the Azure trace's, about 2.5]")
@click.option("--scale", default=1.0, show_default=True, help="Multiplies prompt and output lengths.")
@click.option(
    "--arrivals", default="azure", show_default=True, type=click.Choice(ARRIVALS), help="Bursts and silences, or even."
)
@click.option("-o", "--output", help="Write to FILE instead of standard output.", metavar="FILE")
def make_trace(
    seed: int, requests: int, rate: float | None, scale: float, arrivals: Arrivals, output: str | None
) -> None:
    """Make up a trace whose lengths and arrivals are those of the Azure code-completion trace of 2023."""
    try:
        trace = generate(seed, requests, rate, scale=scale, arrivals=arrivals)
        if output is None:
            for line in json_lines(trace.rows):
                click.echo(line, nl=False)
        else:
            write_jsonl(trace.rows, Path(output))
            say(f"{output}: {counted(len(trace.rows), 'request')} over {trace.seconds:.1f} s", err=True)
    except (SettingError, TraceError) as error:
        raise BadInput(str(error)) from None


async def _replay(trace: Trace, load: Load, on_outcome: Callable[[Outcome], None]) -> Replay:
    """Replays until done, or until Ctrl-C: what was measured by then is still reported."""
    from tritonprobe.traffic import client

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        return await client.replay(trace, load, on_outcome=on_outcome, stop=stop)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _progress(trace: Trace) -> Iterator[Callable[[Outcome], None]]:
    """A bar on standard error, where that is a terminal; yields what each outcome has to be told to."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        bar = stack.enter_context(
            Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal)
        )
        task = bar.add_task("replaying", total=len(trace.rows))
        failed = 0

        def on_outcome(outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.error is not None
            bar.update(task, advance=1, description=f"replaying, {failed} failed" if failed else "replaying")

        yield on_outcome
