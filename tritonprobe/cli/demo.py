"""``tritonprobe demo``: what compile, autotune and cache misses cost a small LLM server, cold against warm.

Starts the repository's example server with an empty cache folder, sends it generated traffic, stops it; then the same
with a fresh process and the cache that the first one left. What it prints comes from the servers' own reports and from
the client's clock.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import tritonprobe
from tritonprobe.cli.child import Child, ChildError, child
from tritonprobe.cli.group import BadInput, Complaint, say, say_json
from tritonprobe.files import write_whole
from tritonprobe.settings import SettingError
from tritonprobe.story import Story, from_json
from tritonprobe.traffic.generator import generate
from tritonprobe.traffic.latency import Summary
from tritonprobe.traffic.trace import Trace, TraceRow
from tritonprobe.wording import counted

if TYPE_CHECKING:
    import httpx

SERVER = "examples.llm_server"
NEEDED = ("torch", "starlette", "uvicorn", "httpx")
RATE = 2.5
"""Requests a second: the pace of the trace that the traffic's lengths were fitted to."""
PROMPTS_SHRINK = 8
"""Prompts are this much shorter than the trace's, for a small model on a CPU; answers are cut at `LONGEST_ANSWER`."""
LONGEST_ANSWER = 24
CLASSES = ((1,), (16,), (17,), (16, 17))
"""Prompts sent last, each group alone: Triton compiles apart for 1, for multiples of 16 and for other token counts, and
which of them the traffic's batches have is a matter of timing. With these, both runs have had all of them."""
INTRO = (
    "{requests} and {classes} short ones, to a server that nobody warmed up, twice; cold: an empty cache; "
    "warm: a fresh process with the cache that the first one left"
)
REQUEST_SECONDS = 300.0
FILES = ("metrics-cold.txt", "metrics-warm.txt", "report.json")


@dataclass(frozen=True, slots=True)
class Visit:
    """One server's life: what the client measured and what the server said of itself at the end."""

    summary: Summary
    story: Story
    report: object
    metrics: str
    started_in: float


@click.command()
@click.option(
    "--requests", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Requests of each run."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the traffic.")
@click.option("--device", default="auto", show_default=True, help="auto, cuda or compile-only:cuda:90.")
@click.option("--out", default=Path("out/demo"), show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def demo(requests: int, seed: int, device: str, out: Path, as_json: bool) -> None:
    """Shows what cold calls cost: a server's first traffic against the same traffic with a warm cache.

    The report goes from where the time went to what would make it stop; its last lines say what the clients saw.

    Leaves metrics-cold.txt, metrics-warm.txt and report.json in --out.
    """
    root = _repository()
    _check_device(device)
    _make_folder(out)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="tritonprobe-demo-") as scratch:
            visits = {name: _visit(name, root, Path(scratch), device, requests, seed) for name in ("cold", "warm")}
    except ChildError as error:
        raise click.ClickException(str(error)) from None
    report = _report(visits, requests, seed)
    _leave(out, report, visits)
    if as_json:
        say_json(report)
    else:
        _screen(visits)
        click.echo()
        say(f"{', '.join(FILES)} are in {out}")


def _check_device(device: str) -> None:
    """Raises BadInput before a server is started for nothing. What `auto` means is the server's to say."""
    from tritonprobe.proving.document import pick_device

    if device != "auto":
        try:
            pick_device(device)
        except SettingError as error:
            raise BadInput(str(error)) from None


def _repository() -> Path:
    """Where the example server lies. Raises ClickException if it, or what it needs, is not there."""
    root = Path(tritonprobe.__file__).resolve().parent.parent
    if not (root / SERVER.replace(".", "/") / "__main__.py").exists():
        raise click.ClickException(
            f"the demo runs {SERVER}, which is in tritonprobe's repository and not in the installed package; "
            "run it from a checkout: make demo"
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs {', '.join(missing)}: pip install -e '.[server,bench]' in the checkout, or make env"
        )
    return root


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out}: the folder cannot be made: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise BadInput(f"--out {out}: nothing can be written there")


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the demo like Ctrl-C: the server goes first."""
    raise SystemExit(128 + signal.SIGTERM)


def _visit(name: str, root: Path, scratch: Path, device: str, requests: int, seed: int) -> Visit:
    env = {**os.environ, "TRITON_CACHE_DIR": str(scratch / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", SERVER, "--port", "0", "--device", device, "--no-warmup"]
    state = "an empty cache" if name == "cold" else "the cache that the first one left"
    say(f"{name}: starting a server with {state}", err=True)
    with child(command, scratch / f"{name}.log", cwd=root, env=env) as server:
        say(f"{name}: ready after {server.started_in:.1f} s; sending {counted(requests, 'request')}", err=True)
        summary = asyncio.run(_traffic(server, requests, seed))
        report = _get(server, "/report").json()
        return Visit(summary, from_json(report), report, _get(server, "/metrics").text, server.started_in)


async def _traffic(server: Child, requests: int, seed: int) -> Summary:
    """Sends the traffic and returns the client's summary. Raises ChildError when the server dies or answers nothing."""
    from tritonprobe.traffic.client import Load, replay

    trace = _trace(requests, seed)
    stop = asyncio.Event()
    bar = click.progressbar(length=requests, file=sys.stderr, show_pos=True, hidden=not sys.stderr.isatty())
    watch = asyncio.create_task(_watch(server, stop))
    try:
        with bar:
            load = Load(server.url, timeout=REQUEST_SECONDS, seed=seed)
            done = await replay(trace, load, on_outcome=lambda _: bar.update(1), stop=stop)
        for prompts in CLASSES:
            together = tuple(TraceRow(0.0, tokens, 4) for tokens in prompts)
            await replay(Trace(together, skipped=0, source="classes"), load, stop=stop)
    finally:
        watch.cancel()
    if not server.alive:
        raise server.died()
    summary = Summary.of(done)
    if summary.failed:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in summary.failed)
        say(f"  {requests - summary.completed} of {counted(requests, 'request')} failed: {kinds}", err=True)
        if not summary.completed:
            raise ChildError(f"the server answered none of {counted(requests, 'request')} ({kinds})")
    return summary


async def _watch(server: Child, stop: asyncio.Event) -> None:
    """Ends the replay when the server is gone: its requests would only fail one by one."""
    while server.alive:  # noqa: ASYNC110  # a process sets no asyncio event
        await asyncio.sleep(0.2)
    stop.set()


def _trace(requests: int, seed: int) -> Trace:
    found = generate(seed, requests, RATE, arrivals="poisson")
    rows = tuple(
        TraceRow(row.t, math.ceil(row.prompt_tokens / PROMPTS_SHRINK), min(row.output_tokens, LONGEST_ANSWER))
        for row in found.rows
    )
    return Trace(rows, skipped=0, source=found.source)


def _get(server: Child, path: str) -> httpx.Response:
    import httpx

    try:
        response = httpx.get(server.url + path, timeout=30.0, trust_env=False)
        response.raise_for_status()
    except httpx.HTTPError as error:
        if not server.alive:
            raise server.died() from None
        raise ChildError(f"{path} could not be read from the server: {error}") from None
    return response


def _report(visits: dict[str, Visit], requests: int, seed: int) -> dict[str, Any]:
    """The JSON report: how it was made, and both runs as the client and as the server saw them."""
    return {
        "format": 1,
        "traffic": {
            "requests": requests,
            "seed": seed,
            "source": _trace(requests, seed).source,
            "then_prompts_of": CLASSES,
        },
        **{
            name: {"started_in": visit.started_in, "client": asdict(visit.summary), "server": visit.report}
            for name, visit in visits.items()
        },
    }


def _leave(out: Path, report: object, visits: dict[str, Visit]) -> None:
    """Writes the files, each complete or not at all."""
    texts = (visits["cold"].metrics, visits["warm"].metrics, json.dumps(report, indent=1) + "\n")
    for name, text in zip(FILES, texts, strict=True):
        try:
            write_whole(out / name, [text])
        except OSError as error:
            raise Complaint(f"{out / name}: cannot be written: {error.strerror}") from None


def _screen(visits: dict[str, Visit]) -> None:
    from tritonprobe.export import text

    runs = [text.Run(name, v.story, v.summary.ttft, v.summary.tpot) for name, v in visits.items()]
    click.echo(err=True)
    requests = counted(visits["cold"].summary.requests, "request")
    text.show(runs, text.console(), INTRO.format(requests=requests, classes=sum(map(len, CLASSES))))
