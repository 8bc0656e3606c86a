"""What everything on costs vLLM: the time of a step with every patch taken back, and in place, in turns, in one engine.

python -m tritonprobe run -- python -m tests.gpu.vllm_cost --site SITE --mode eager|graph --out FILE [--turn FILE]

The engine runs in this process, without HTTP, on 32 requests that all get a token each step. Tokens a second are those
of the median step of rounds that take turns after some steps, on one core, since a machine's pace drifts by more than
what is looked for. What GPU windows take is added, as their budget bounds it. Exit code 1: the loss may be more than
1%.
"""

from __future__ import annotations

import os

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import argparse
import contextlib
import fcntl
import random
import sys
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.tokens_lost import leave, stay_on_one_core
from tests.gpu.vllm_engine import KV_BYTES
from tritonprobe.proving.intervals import base_first
from tritonprobe.runtime import current
from tritonprobe.switch import switch

REQUESTS, PROMPT = 32, 64
STEPS, SETTLING = 8, 10  # of a round, and those before it: a switch takes both programs out of the caches
BLOCK = 25  # pairs of rounds with the same requests
CALM = 25  # pairs after which the calmest core is looked for again
CORES = os.sched_getaffinity(0)


def engine_of(site: Path, mode: str) -> Any:
    from vllm import LLM

    llm = LLM(
        model=str(site / "_tiny"),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=mode == "eager",
        attention_backend="TRITON_ATTN",
        max_model_len=8192,
        kv_cache_memory_bytes=int(KV_BYTES),
        gpu_memory_utilization=0.1,
        enable_prefix_caching=False,
    )
    return llm.llm_engine


def ask(engine: Any, rounds: int) -> None:
    """Sends requests that last for so many rounds, after those that are there."""
    from vllm import SamplingParams

    draw = random.Random(0)
    while engine.has_unfinished_requests():
        engine.step()
    tokens = rounds * (STEPS + SETTLING) + SETTLING
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, detokenize=False, ignore_eos=True)
    for number in range(REQUESTS):
        prompt = {"prompt_token_ids": [draw.randrange(5, 31000) for _ in range(PROMPT)]}
        engine.add_request(f"{tokens}-{number}", prompt, sampling)


def tokens_per_second(engine: Any) -> float:
    for _ in range(SETTLING):
        engine.step()
    times = [time.perf_counter_ns()]
    for _ in range(STEPS):
        engine.step()
        times.append(time.perf_counter_ns())
    return REQUESTS / median(later - earlier for earlier, later in pairwise(times)) * 1e9


def turn(on: bool) -> None:
    """As `tritonprobe off` and `on` have it done. Windows wait until they are asked for."""
    me, mine = threading.get_native_id(), os.sched_getaffinity(0)
    os.sched_setaffinity(me, CORES)
    runtime = current()
    left = switch(runtime, "on" if on else "off")  # its threads may run on all cores
    assert not left, left
    if on and runtime.adapter.gpu is not None:
        runtime.adapter.gpu.times.stop()
    os.sched_setaffinity(me, mine)


def in_windows(engine: Any) -> dict[str, Any]:
    """What GPU windows say they take. The requests go on meanwhile."""
    watch: Any = current().adapter.gpu
    if watch is None:
        return {"share": 0.0, "info": ("none", "off")}
    samples: list[Any] = []
    for _ in range(5):
        window = threading.Thread(target=lambda: samples.append(watch.times.window(watch.times.budget.seconds)))
        window.start()
        while window.is_alive():
            engine.step()
        window.join()
    is_on = watch.times.info[0] == "cupti"
    return {
        "share": watch.times.budget.share if is_on else 0.0,
        "period_s": watch.times.budget.period,
        "info": watch.times.info,
        "seen": [[asdict(sample) for sample in each] for each in samples],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--mode", choices=("eager", "graph"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--turn", type=Path, help="a file that is locked while it measures")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="fewer pairs if it takes longer")
    given = parser.parse_args()
    engine = engine_of(given.site, given.mode)
    with contextlib.ExitStack() as stack:
        if given.turn is not None:
            fcntl.flock(stack.enter_context(given.turn.open("w")), fcntl.LOCK_EX)
        until = time.monotonic() + given.seconds
        found: dict[bool, list[float]] = {True: [], False: []}
        for pair, off_first in enumerate(base_first(given.pairs, 0)):
            if pair % BLOCK == 0:
                ask(engine, 2 * BLOCK + 2)
                for on in (True, False):
                    turn(on)
                    tokens_per_second(engine)
            if pair % CALM == 0:
                stay_on_one_core(threading.get_native_id(), CORES)
            for on in (not off_first, off_first):
                turn(on)
                found[on].append(tokens_per_second(engine))
            if time.monotonic() > until:
                break
        turn(True)
        ask(engine, 100)
        windows = in_windows(engine)
    windows_set = os.environ.get("TRITONPROBE_GPU_WINDOWS", "off")
    command = (
        f"TRITONPROBE_GPU_WINDOWS={windows_set} tritonprobe run -- "
        f"python -m tests.gpu.vllm_cost --mode {given.mode} --pairs {len(found[True])}"
    )
    more = {"mode": given.mode, "requests": REQUESTS, "steps_a_round": STEPS, "gpu_windows": windows}
    rounds = {"off": found[False], "on": found[True]}
    return leave("vllm_cost", command, rounds, windows["share"], more, given.out)


if __name__ == "__main__":
    sys.exit(main())
