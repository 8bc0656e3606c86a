"""A vLLM that replays what an earlier one recorded, before it is ready. What its first requests wait for then.

python -m tests.gpu.vllm_prewarm --site SITE --mode eager|graph --work FOLDER --trace CSV --census FILE --out FILE

The census is that of `vllm_shows` with the shows `ladder` and `trace`, and ``--record``. The server replays it in its
worker, and gets the same requests again: its cold calls after ready, the first times to a token beside the hot ones,
and the trace's P99. With ``--trace-first`` that is of a server which has answered nobody before. `FOLDER` takes caches
of its own: none of its kernels was ever compiled there. With ``--turn FILE`` it takes turns with other such programs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tests.gpu.vllm_engine import Server, total
from tests.gpu.vllm_shows import in_turn, ladder, made, trace

INCIDENTS = "cold_calls_after_ready_total"


def served(server: Server, path: Path, order: Sequence[str], turn: Path | None) -> dict[str, Any]:
    shows: dict[str, Callable[[], dict[str, Any]]] = {
        "ladder": lambda: ladder(server),
        "trace": lambda: trace(server, path),
    }
    found: dict[str, dict[str, Any]] = {}
    incidents: dict[str, float] = {}
    with server:
        before = reading = server.read()
        for show in order if turn is None else in_turn(order, turn):
            found[show] = shows[show]()
            earlier, reading = reading, server.read()
            incidents[show] = total(reading, INCIDENTS) - total(earlier, INCIDENTS)
    first = found["ladder"]
    return {
        "order": list(order),
        "up_seconds": server.up_seconds,
        "cold_seconds_before_ready": total(before, "cold_seconds_total"),
        "coverage": next((v for k, v in before.items() if k[0] == "prewarm_coverage_ratio"), None),
        "incidents_in_ladder": incidents["ladder"],
        "incidents_in_trace": incidents["trace"],
        "by_kernel": {
            " ".join(k[1:]): v for k, v in reading.items() if k[0] == "cold_calls_after_ready_by_kernel_total"
        },
        "ladder": first,
        "ttft_ratios": {
            f"{rung['prompt']} x {rung['at_once']}{' sampled' if rung['sampling'] else ''}": round(
                rung["first_ttft_s"] / rung["hot_ttft_s"], 2
            )
            for rung in first["requests"]
            if rung["hot_ttft_s"]
        },
        "trace": found["trace"],
        "said": server.said(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("site", "work", "trace", "census", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    parser.add_argument("--trace-first", action="store_true")
    parser.add_argument("--turn", type=Path, help="a file that is locked during the shows")
    given = parser.parse_args()
    order = ("trace", "ladder") if given.trace_first else ("ladder", "trace")
    engine = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    options = ("--prewarm", str(given.census.resolve()))
    given.work.mkdir(parents=True, exist_ok=True)
    server = Server(given.site, given.work.resolve(), given.mode, 8300, True, engine, "prewarmed", options=options)
    found = {
        **made("vllm prewarm", "tests.gpu.vllm_prewarm", None),
        "mode": given.mode,
        **served(server, given.trace, order, given.turn),
    }
    given.out.write_text(json.dumps(found, indent=1))
    click.echo(json.dumps({k: v for k, v in found.items() if k not in ("ladder", "said")}, indent=1))


if __name__ == "__main__":
    main()
