"""vLLM twice: recorded, and again after a replay of what was recorded. What its first requests wait for then.

python -m tests.gpu.vllm_prewarm --site SITE --mode eager|graph --work FOLDER --trace CSV --out FILE [--census FILE]

The first server runs the ladder of `vllm_shows` and the first requests of a trace, and leaves its census; with
``--census`` there is one, and it is left out. The second one replays the census in its worker before vLLM is ready, and
gets the same requests: its cold calls after ready, the first times to a token beside the hot ones, and the trace's P99.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from tests.gpu.vllm_engine import ROOT, Server, total
from tests.gpu.vllm_shows import ladder

REQUESTS, SPEED = 200, 2.0


class CensusServer(Server):
    """`vllm serve` under ``tritonprobe run`` with the options that write or replay a census."""

    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("run") + 1
        return [*words[:at], *self.options, *words[at:]]


def trace(server: Server, path: Path) -> dict[str, Any]:
    words = ["bench", "serve", str(path), "--url", f"http://127.0.0.1:{server.port}", "--limit", str(REQUESTS)]
    words += ["--speed", str(SPEED), "--vocab", "31000", "--max-prompt", "7600", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tritonprobe", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"failed": done.stderr[-2000:]}
    return {name: value for name, value in found.items() if not isinstance(value, list)}  # without a row a request


def served(server: CensusServer, path: Path) -> dict[str, Any]:
    server.start()
    try:
        before = server.read()
        first = ladder(server)
        between = server.read()
        replayed = trace(server, path)
        after = server.read()
    finally:
        server.stop()
    incidents = "cold_calls_after_ready_total"
    return {
        "up_seconds": server.up_seconds,
        "cold_seconds_before_ready": total(before, "cold_seconds_total"),
        "coverage": next((v for k, v in before.items() if k[0] == "prewarm_coverage_ratio"), None),
        "incidents_in_ladder": total(between, incidents) - total(before, incidents),
        "incidents_in_trace": total(after, incidents) - total(between, incidents),
        "by_kernel": {" ".join(k[1:]): v for k, v in after.items() if k[0] == "cold_calls_after_ready_by_kernel_total"},
        "ladder": first,
        "ttft_ratios": {
            f"{rung['prompt']} x {rung['at_once']}{' sampled' if rung['sampling'] else ''}": round(
                rung["first_ttft_s"] / rung["hot_ttft_s"], 2
            )
            for rung in first["requests"]
            if rung["hot_ttft_s"]
        },
        "trace": replayed,
        "log": server.tail(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("site", "work", "trace", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    parser.add_argument("--census", type=Path)
    given = parser.parse_args()
    work = given.work.resolve()
    engine = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    found: dict[str, Any] = {"mode": given.mode}

    def write() -> None:
        given.out.write_text(json.dumps(found, indent=1))

    census = (given.census or work / "census.json").resolve()
    if given.census is None:
        server = CensusServer(given.site, work, given.mode, 8200, True, engine, "record")
        server.options = ("--record", str(census))
        found["recorded"] = served(server, given.trace)
        write()
    server = CensusServer(given.site, work, given.mode, 8300, True, engine, "prewarmed")
    server.options = ("--prewarm", str(census))
    found["prewarmed"] = served(server, given.trace)
    write()
    click.echo(json.dumps({k: v for k, v in found["prewarmed"].items() if k not in ("ladder", "log")}, indent=1))


if __name__ == "__main__":
    main()
