"""What everything on, GPU windows too, costs the example server: tokens a second, with and without, in turn.

    TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost [--pairs 150] [-o FILE]

One engine in one process, without HTTP. Tokens a second are those of the median step, in many short rounds, since a
machine's pace drifts by more than what is looked for; what windows take is added, as the budget bounds it. Exit code 1:
the loss may be more than 1%.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

import tritonprobe
from examples.llm_server.config import EngineConfig, ModelConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Failed, Sampling, Token
from examples.llm_server.model import Decoder
from tests.gpu.tokens_lost import leave, stay_on_one_core
from tritonprobe.proving.intervals import base_first
from tritonprobe.runtime import current

REQUESTS, PROMPT, TOKENS = 16, 256, 32
SETTLING = 2  # steps in which some requests may still be in their prompts
MODEL = ModelConfig(
    layers=8, hidden=1024, heads=16, kv_heads=8, intermediate=2816, vocab=32000, max_len=2048, dtype="bfloat16"
)


def tokens_per_second(engine: Engine, tokens: int = TOKENS) -> float:
    """Of `REQUESTS` requests at once, by the median time of a step in which all of them get one token."""
    ended = threading.Semaphore(0)
    times: list[int] = []  # of the first request's tokens
    failed: list[Failed] = []

    def emit(number: int, what: Token | Failed) -> None:
        if isinstance(what, Failed):
            failed.append(what)
        elif number == 0:
            times.append(time.perf_counter_ns())
        if isinstance(what, Failed) or what.finish_reason:
            ended.release()

    for number in range(REQUESTS):
        prompt = [(7 * number + place) % 30000 + 3 for place in range(PROMPT)]
        engine.submit(str(number), prompt, Sampling(max_tokens=tokens, ignore_eos=True), partial(emit, number))
    for _ in range(REQUESTS):
        ended.acquire()
    assert not failed, failed[0]
    assert len(times) == tokens
    steps = [later - earlier for earlier, later in pairwise(times[SETTLING:])]
    return REQUESTS / (median(steps) / 1e9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    watch: Any = current().adapter.gpu
    if watch is None:
        parser.error("GPU windows are off: set TRITONPROBE_GPU_WINDOWS=1")
    model = Decoder(MODEL, REQUESTS, torch.device("cuda"))
    with Engine(model, EngineConfig(max_len=MODEL.max_len, vocab=MODEL.vocab, slots=REQUESTS)) as engine:
        served = next(thread for thread in threading.enumerate() if "engine" in thread.name)
        assert served.native_id is not None
        stay_on_one_core(served.native_id)
        for _ in range(3):
            tokens_per_second(engine)
        tritonprobe.instrument()
        watch.times.stop()
        tokens_per_second(engine)
        first = watch.times.window(0.02)
        assert watch.times.info[0] == "cupti", watch.times.info
        tritonprobe.uninstrument()
        rounds: dict[str, list[float]] = {"without": [], "with": []}
        seen: list[Any] = []
        for base in base_first(options.pairs, 0):
            for without in (base, not base):
                if not without:
                    tritonprobe.instrument()
                    watch.times.stop()  # windows are measured apart: a median step has none
                tokens_per_second(engine, 8)  # the first launches after a switch are no hot ones
                rounds["without" if without else "with"].append(tokens_per_second(engine))
                tritonprobe.uninstrument()
        tritonprobe.instrument()
        watch.times.stop()
        for _ in range(5):
            window = threading.Thread(target=lambda: seen.append(watch.times.window(watch.times.budget.seconds)))
            window.start()
            tokens_per_second(engine)
            window.join()
        tritonprobe.uninstrument()
    torch.cuda.synchronize()
    command = f"TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost --pairs {options.pairs}"
    more = {
        "period_s": watch.times.budget.period,
        "seen_in_windows": [[asdict(sample) for sample in each] for each in (first, *seen)],
    }
    return leave("server_cost", command, rounds, watch.times.budget.share, more, options.output)


if __name__ == "__main__":
    sys.exit(main())
