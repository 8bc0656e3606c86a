"""A vLLM that replays what an earlier one recorded, before it is ready. What its first requests wait for then.

python -m tests.gpu.vllm_prewarm --site SITE --mode eager|graph --work FOLDER --trace CSV --census FILE --out FILE
    [--trace-first] [--without] [--port PORT] [--turn FILE]

The census is that of `vllm_shows` with the shows `ladder` and `trace`, and ``--record``. The server replays it in its
worker, and gets the same requests again: its cold calls after ready, the first times to a token beside the hot ones,
and the trace's P99. With ``--trace-first`` that is of a server which has answered nobody before. `FOLDER` takes caches
of its own: none of its kernels was ever compiled there. With ``--without`` another server starts before, without a
replay and with caches of its own, too, for its time to be healthy. With ``--turn FILE`` it takes turns with other such
programs. Exit code 1: something was cold after ready, a first request waited for Triton, or the trace's P99 is too
long; the document says what.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tests.gpu.vllm_engine import Server, total
from tests.gpu.vllm_shows import TRACED, in_turn, ladder, made, trace

INCIDENTS = "cold_calls_after_ready_total"
FIRST_TO_HOT = 1.3
"""A first time to a token in hot ones: what it may be at most, where the rest is Triton's."""
P99_SECONDS = 0.1
"""Of the trace's times to a first token."""


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
    unmet, others = judge(sum(incidents.values()), first["requests"], found["trace"])
    return {
        "order": list(order),
        "good": not unmet,
        "unmet": unmet,
        "beyond_without_triton": others,
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
            name(rung): round(rung["first_ttft_s"] / rung["hot_ttft_s"], 2)
            for rung in first["requests"]
            if rung["hot_requests"]
        },
        "trace": found["trace"],
        "said": server.said(),
    }


def name(rung: Mapping[str, Any]) -> str:
    return f"{rung['prompt']} x {rung['at_once']}{' sampled' if rung['sampling'] else ''}"


def judge(
    incidents: float, rungs: Sequence[Mapping[str, Any]], traced: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """What is not as it should be; and first requests that waited longer than that for something else than Triton."""
    unmet: list[str] = [f"{incidents:.0f} cold calls after ready"] if incidents else []
    others: list[str] = []
    for rung in rungs:
        first, hot, cold = (rung[key] for key in ("first_ttft_s", "hot_ttft_s", "cold_before_first_token_s"))
        if not (rung["hot_requests"] and first and hot):
            unmet.append(f"{name(rung)}: no first time to a token, or no hot one to hold it against")
        elif first > FIRST_TO_HOT * hot:
            said = (
                f"{name(rung)}: {first * 1e3:.1f} ms, hot {hot * 1e3:.1f}: {cold * 1e3:.1f} of the difference are cold "
                f"calls, {rung['first_steps_beyond_cold_s'] * 1e3:.1f} first steps, {rung['unexplained_s'] * 1e3:.1f} "
                "nobody names"
            )
            (unmet if cold > 0 else others).append(said)
    summary = traced.get("summary")
    if summary is None:
        unmet.append(f"the trace was not replayed: {traced['failed']}")
    elif summary["completed"] != TRACED:
        unmet.append(f"{summary['completed']} of the trace's {TRACED} requests were answered: {summary['failed']}")
    elif summary["ttft"]["p99"] > P99_SECONDS:
        unmet.append(f"the trace's P99 TTFT is {summary['ttft']['p99'] * 1e3:.0f} ms, above {P99_SECONDS * 1e3:.0f}")
    return unmet, others


def without(server: Server) -> dict[str, float]:
    """A start without a replay."""
    with server:
        return {"up_seconds": server.up_seconds, "cold_seconds": total(server.read(), "cold_seconds_total")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("site", "work", "trace", "census", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    parser.add_argument("--trace-first", action="store_true")
    parser.add_argument("--without", action="store_true", help="start without a replay before, to compare")
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--turn", type=Path, help="a file that is locked during the shows")
    given = parser.parse_args()
    order = ("trace", "ladder") if given.trace_first else ("ladder", "trace")
    engine = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    options = ("--prewarm", str(given.census.resolve()))

    def server(place: Path, called: str, options: Sequence[str]) -> Server:
        place.mkdir(parents=True, exist_ok=True)
        return Server(given.site, place.resolve(), given.mode, given.port, True, engine, called, options=options)

    alone = without(server(given.work / "without", "without", ())) if given.without else None
    found = {
        **made("vllm prewarm", "tests.gpu.vllm_prewarm", None),
        "mode": given.mode,
        "without_replay": alone,
        **served(server(given.work, "prewarmed", options), given.trace, order, given.turn),
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps({k: v for k, v in found.items() if k not in ("ladder", "said")}, indent=1))
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
