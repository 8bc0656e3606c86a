"""What tritonprobe says of a real vLLM, held against independent clocks and counts. One start of vLLM a run.

python -m tests.gpu.vllm_shows --site SITE --mode eager|graph --work FOLDER --out FILE [--alone]

`SITE` is where vLLM and the model folder ``_tiny`` lie. `FOLDER` takes caches, logs and ledgers; a second run with the
same one finds its caches. The shows, in this order, each written to FILE as soon as it is there:

ladder     requests of many shapes, again until hot: the first is as long as its cold phases and the hot one
stalls     planted ones, and whom they are charged to (`vllm_stalls`)
trace      the first requests of a trace of production; with ``--record``, what a census for `vllm_prewarm` is made of
greedy     the outputs of fixed prompts, off and on; with ``--alone``, of an engine that never saw tritonprobe
profiler   vLLM's own profiler route while watched
kill       the engine core is killed in the middle of a request

``--alone`` starts vLLM without tritonprobe, and runs `greedy` and `kill` for comparison with an earlier FILE. What the
probe costs is `vllm_cost`'s. With ``--turn FILE`` several of these programs may start at a time, and take turns.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from tests.gpu import vllm_stalls
from tests.gpu.vllm_engine import MODEL, ROOT, Answer, Reading, Server, total

SEED = 0
# Prompt length, how many at once, sampling: what MEASURED requests were slow for, and the shapes between them.
LADDER: tuple[tuple[int, int, dict[str, object]], ...] = (
    (17, 1, {}), (128, 1, {}), (129, 1, {}), (1000, 1, {}), (2048, 1, {}), (4808, 1, {}),
    (100, 4, {}), (333, 16, {}), (1, 1, {}), (16, 3, {}),
    (64, 2, {"temperature": 0.8, "top_p": 0.9, "top_k": 20}),
    (64, 16, {"temperature": 0.8, "top_p": 0.9, "top_k": 20}),
)  # fmt: skip
RELATIVE, ABSOLUTE = 0.05, 0.010
SLOW_SECONDS = 0.050
"""A first request slower than its hot one by this is one that has to be explained."""
HOT_TRIES = 8
WINDOW_SECONDS = 75.0
"""How long a GPU window may take to come: they are as rare as their budget has it."""
TRACED = 200
"""Requests of the trace."""


def _wake(server: Server) -> None:
    """What the API server does at its first request and no kernel has to do with: tokenising, and refusing one."""
    server.call("POST", "/tokenize", {"model": MODEL, "prompt": "t7 t8 t9"})
    for _ in range(2):
        assert server.complete([[7] * 9000], 8).status == 400  # longer than the model can take: it never gets a step


def ladder(server: Server) -> dict[str, Any]:
    draw = random.Random(SEED)
    _wake(server)
    rungs = [_rung(server, draw, *shape) for shape in LADDER]
    slow = [rung for rung in rungs if not rung["first_ttft_s"] - rung["hot_ttft_s"] <= SLOW_SECONDS]
    end = server.read()
    compiles, cubins = int(total(end, "cache_lookups_total", None, None, "compile")), server.cubins()
    return {
        "requests": rungs,
        "slow": len(slow),
        "explained": sum(rung["explained"] for rung in slow),
        "compiles": compiles,
        "cubins": cubins,
        "good": all(rung["explained"] for rung in slow) and compiles == cubins,
    }


def _rung(server: Server, draw: random.Random, length: int, count: int, sampling: dict[str, object]) -> dict[str, Any]:
    readings: list[Reading] = []

    def ask() -> tuple[Answer, Reading, Reading]:
        prompts = [[draw.randrange(5, 31000) for _ in range(length)] for _ in range(count)]
        before = server.read()
        readings.clear()
        answer = server.complete(prompts, 8, lambda: readings.append(server.read()), **sampling)
        time.sleep(0.1)  # the engine's last step is counted when it ends, after the client has its answer
        return answer, before, server.read()

    first, before, after = ask()
    at_first = readings[0] if readings else after
    hot: list[Answer] = []
    for _ in range(HOT_TRIES):
        answer, hot_before, hot_after = ask()
        # The prompts of one request may be batched otherwise than before, and be cold once more.
        if total(hot_after, "cold_seconds_total") == total(hot_before, "cold_seconds_total"):
            hot.append(answer)
        if len(hot) == 2:
            break
    hot_ttft = min((answer.first or 0.0 for answer in hot), default=float("nan"))
    cold = total(at_first, "cold_seconds_total") - total(before, "cold_seconds_total")
    exposed = sum(
        total(after, "request_exposure_seconds", "before_first_token", waited, "sum")
        - total(before, "request_exposure_seconds", "before_first_token", waited, "sum")
        for waited in ("in_batch", "queued")
    )
    ttft = first.first or 0.0
    # What first steps took longer than the same again is known once there was the same again.
    other = total(server.read(), "step_first_use_seconds_total") - total(before, "step_first_use_seconds_total")
    unexplained = ttft - hot_ttft - cold - other
    return {
        "prompt": length,
        "at_once": count,
        "sampling": sampling,
        "first_ttft_s": ttft,
        "hot_ttft_s": hot_ttft,
        "cold_before_first_token_s": cold,
        "first_steps_beyond_cold_s": other,
        "exposure_before_first_token_s_per_request": exposed / count,
        "unexplained_s": unexplained,
        "explained": abs(unexplained) <= max(RELATIVE * ttft, ABSOLUTE),
        "first_end_to_end_s": first.end,
        "hot_requests": len(hot),
        "hot_end_to_end_s": min((answer.end for answer in hot), default=float("nan")),
        "cold_end_to_end_s": total(after, "cold_seconds_total") - total(before, "cold_seconds_total"),
        "phases_s": _grown(before, after, "cold_seconds_total"),
        "incidents": _grown(before, after, "cold_calls_after_ready_by_kernel_total"),
        "errors": [answer.error for answer in (first, *hot) if answer.error],
    }


def _grown(before: Reading, after: Reading, name: str) -> dict[str, float]:
    grown = {key: value - before.get(key, 0.0) for key, value in after.items() if key[0] == name}
    return {" ".join(key[1:]): round(value, 6) for key, value in sorted(grown.items()) if value > 0}


def trace(server: Server, path: Path) -> dict[str, Any]:
    """The first requests of a trace, at twice their pace."""
    words = ["bench", "serve", str(path), "--url", f"http://127.0.0.1:{server.port}", "--limit", str(TRACED)]
    words += ["--speed", "2", "--vocab", "31000", "--max-prompt", "7600", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tritonprobe", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"failed": done.stderr[-2000:], "good": False}
    found["trace"]["source"] = path.name  # a document names no folder
    return {name: value for name, value in found.items() if not isinstance(value, list)}  # without a row a request


def greedy(server: Server) -> dict[str, Any]:
    def outputs() -> list[str]:
        draw = random.Random(SEED + 2)
        asked = [[draw.randrange(5, 31000) for _ in range(length)] for length in (5, 17, 64, 128, 333, 1000, 2048)]
        return [server.complete([prompt], 32).texts[0] for prompt in asked]

    if not server.watched:
        return {"alone": outputs()}
    on = outputs()
    server.switch("off")
    off = outputs()
    server.switch("on")
    again = outputs()
    return {"on": on, "off": off, "on_again": again, "good": on == off == again and all(on)}


def profiler(server: Server) -> dict[str, Any]:
    draw = random.Random(SEED + 3)
    prompt = [[draw.randrange(5, 31000) for _ in range(64)]]
    before = _sampled(server, prompt, 0)
    started, said = server.call("POST", "/start_profile")
    answer = server.complete(prompt, 8)
    stopped, said_at_stop = server.call("POST", "/stop_profile")
    kernels = _profiled_kernels(server.traces)
    between = _windows(server.read())
    windows = _windows(_sampled(server, prompt, between)) - between if _has_windows(server) else 0.0
    return {
        "start": started,
        "stop": stopped,
        "said": (said + said_at_stop)[:300],
        "answer_error": answer.error,
        "kernels_in_trace": kernels,
        "gpu_samples_before": _windows(before),
        "gpu_samples_after_profile": windows,
        "windows_are_expected": _has_windows(server),
        "windows": _grown({}, server.read(), "gpu_windows_total"),
        "errors_total": _grown({}, server.read(), "errors_total"),
        "good": started == stopped == 200
        and kernels > 0
        and (not _has_windows(server) or (windows > 0 and between > 0)),
    }


def _sampled(server: Server, prompt: list[list[int]], before: float) -> Reading:
    """Traffic until there are more GPU samples than `before`; not for ever, for they may fail to come."""
    until = time.monotonic() + (WINDOW_SECONDS if _has_windows(server) else 0)
    while _windows(server.read()) <= before and time.monotonic() < until:
        server.complete(prompt, 64)
    return server.read()


def _has_windows(server: Server) -> bool:
    """Whether there must be GPU windows: a process with CUDA graphs has none unless told so."""
    return server.windows == "graphs" or (server.windows == "on" and server.mode == "eager")


def _windows(reading: Reading) -> float:
    return sum(value for key, value in reading.items() if key[0].startswith("kernel_") and key[-1] == "count")


def _profiled_kernels(folder: Path) -> int:
    """Kernels in the traces that vLLM's profiler wrote."""
    found = 0
    for path in folder.rglob("*.json*"):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += text.count(b'"cat": "kernel"') + text.count(b'"cat":"kernel"')
    return found


def kill(server: Server) -> dict[str, Any]:
    draw = random.Random(SEED + 4)
    prompt = [[draw.randrange(5, 31000) for _ in range(64)]]
    cores = [pid for pid, title in server.processes().items() if "EngineCore" in title]
    before = server.read() if server.watched else {}
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(server.complete(prompt, 4000)))
    thread.start()
    time.sleep(1.0)
    begin = time.monotonic()
    for pid in cores:
        os.kill(pid, signal.SIGKILL)
    thread.join(60)
    answered = time.monotonic() - begin
    assert server.process is not None
    while server.process.poll() is None and time.monotonic() - begin < 60:
        time.sleep(0.1)
    ended = time.monotonic() - begin
    code = server.process.poll()
    after = server.read() if server.watched else {}
    fallen = [" ".join(k) for k, v in before.items() if k[0].endswith("_total") and after.get(k, 0.0) < v]
    answer = answers[0] if answers else None
    return {
        "killed": len(cores),
        "status": None if answer is None else answer.status,
        "error": None if answer is None else answer.error,
        "answered_after_s": answered,
        "server_ended_after_s": ended,
        "exit_code": code,
        "counters_before": sum(k[0].endswith("_total") for k in before),
        "counters_that_fell_or_vanished": fallen,
        "launches_kept": total(after, "launches_total") >= total(before, "launches_total"),
        "good": bool(cores) and code is not None and not fallen,
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.vllm_shows", description=__doc__)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--shows", default="ladder,stalls,greedy,profiler,kill")
    parser.add_argument("--trace", type=Path, help="for the show of that name")
    parser.add_argument("--record", type=Path, help="where the census goes")
    parser.add_argument("--turn", type=Path, help="a file that is locked during the shows")
    parser.add_argument("--windows", choices=("off", "on", "graphs"), default="on", help="TRITONPROBE_GPU_WINDOWS")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--engine", default=f"{sys.executable} -m vllm.entrypoints.cli.main")
    given = parser.parse_args(words)
    given.work.mkdir(parents=True, exist_ok=True)
    name = f"{given.mode}-{'alone' if given.alone else 'watched'}"
    server = Server(
        given.site,
        given.work.resolve(),
        given.mode,
        given.port,
        not given.alone,
        shlex.split(given.engine),
        name,
        given.windows,
        () if given.record is None else ("--record", str(given.record.resolve())),
        {} if given.alone else vllm_stalls.environment(given.work.resolve()),
    )
    shows: dict[str, Callable[[], dict[str, Any]]] = {
        "ladder": lambda: ladder(server),
        "stalls": lambda: vllm_stalls.stalls(server),
        "trace": lambda: trace(server, given.trace),
        "greedy": lambda: greedy(server),
        "profiler": lambda: profiler(server),
        "kill": lambda: kill(server),
    }
    wanted = [show for show in given.shows.split(",") if not (given.alone and show not in ("greedy", "kill"))]
    body: dict[str, Any] = {
        **made("vllm shows", "tests.gpu.vllm_shows", words),
        "mode": given.mode,
        "alone": given.alone,
        "gpu_windows": given.windows,
        "shows": {},
    }
    try:
        server.start()
        body["up_seconds"] = server.up_seconds
        for show in wanted if given.turn is None else in_turn(wanted, given.turn):
            begin = time.monotonic()
            try:
                body["shows"][show] = shows[show]()
            except Exception as error:
                body["shows"][show] = {"failed": f"{type(error).__name__}: {error}"[:2000], "good": False}
            body["shows"][show]["took_s"] = round(time.monotonic() - begin, 2)
            _write(given.out, body)
            click.echo(f"{show} {json.dumps({k: v for k, v in body['shows'][show].items() if _short(v)})}")
    except Exception as error:
        body["failed"] = f"{type(error).__name__}: {error}"[:4000]
        click.echo(body["failed"])
    finally:
        body["exit_code"] = server.stop()
        body["said"] = server.said() if server.log.exists() else []
        _write(given.out, body)
        click.echo("\n".join(body["said"][-12:]))
    return 0 if "failed" not in body and all(show.get("good", True) for show in body["shows"].values()) else 1


def in_turn(shows: Sequence[str], lock: Path) -> Iterator[str]:
    """The shows, each while this program alone has the lock."""
    with lock.open("w") as file:
        for show in shows:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield show
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.2)  # else who waits for the lock would not get it


def _short(value: object) -> bool:
    return not isinstance(value, (list, dict)) or len(str(value)) < 200


def _write(path: Path, body: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def made(bench: str, program: str, words: Sequence[str] | None) -> dict[str, Any]:
    """What every document says of where it comes from; of files only that they were given."""
    versions = {"python": platform.python_version()}
    for package in ("tritonprobe", "vllm", "torch", "triton"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    options = [word for word in (sys.argv[1:] if words is None else words) if "/" not in word]
    return {
        "format": 1,
        "bench": bench,
        "command": shlex.join(["python", "-m", program, *options]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "device": _device(),
    }


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


if __name__ == "__main__":
    sys.exit(main())
