"""A vLLM that replays what an earlier one recorded, before it is ready. What its first requests wait for then.

python -m tests.gpu.vllm_prewarm --site SITE --mode eager|graph --work FOLDER --trace CSV --census FILE --out FILE

The census is that of `vllm_shows` with the shows `ladder` and `trace`, and ``--record``. The server replays it in its
worker, and gets the same requests again: its cold calls after ready, the first times to a token beside the hot ones,
and the trace's P99. `FOLDER` takes caches of its own: none of its kernels was ever compiled there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import click

from tests.gpu.vllm_engine import Server, total
from tests.gpu.vllm_shows import ladder, made, trace

INCIDENTS = "cold_calls_after_ready_total"


def served(server: Server, path: Path) -> dict[str, Any]:
    with server:
        before = server.read()
        first = ladder(server)
        between = server.read()
        replayed = trace(server, path)
        after = server.read()
    return {
        "up_seconds": server.up_seconds,
        "cold_seconds_before_ready": total(before, "cold_seconds_total"),
        "coverage": next((v for k, v in before.items() if k[0] == "prewarm_coverage_ratio"), None),
        "incidents_in_ladder": total(between, INCIDENTS) - total(before, INCIDENTS),
        "incidents_in_trace": total(after, INCIDENTS) - total(between, INCIDENTS),
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
        "said": server.said(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("site", "work", "trace", "census", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    given = parser.parse_args()
    engine = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    options = ("--prewarm", str(given.census.resolve()))
    given.work.mkdir(parents=True, exist_ok=True)
    server = Server(given.site, given.work.resolve(), given.mode, 8300, True, engine, "prewarmed", options=options)
    found = {
        **made("vllm prewarm", "tests.gpu.vllm_prewarm", None),
        "mode": given.mode,
        **served(server, given.trace),
    }
    given.out.write_text(json.dumps(found, indent=1))
    click.echo(json.dumps({k: v for k, v in found.items() if k not in ("ladder", "said")}, indent=1))


if __name__ == "__main__":
    main()
