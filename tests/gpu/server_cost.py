"""What everything on, GPU windows too, costs the example server: tokens a second, with and without, in turn.

    TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost [--pairs 150] [-o FILE]

One engine in one process, without HTTP. Tokens a second are those of the median step, in many short rounds, since a
machine's pace drifts by more than what is looked for; what windows take is added, as the budget bounds it. Exit code 1:
the loss may be more than 1%.
"""

from __future__ import annotations

import argparse
import json
import os
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
from tritonprobe.proving.document import described, document
from tritonprobe.proving.intervals import base_first, interval, ratios
from tritonprobe.runtime import current

REQUESTS, PROMPT, TOKENS = 16, 256, 32
SETTLING = 2  # steps in which some requests may still be in their prompts
LIMIT = 0.01
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


def _stay_on_one_core(name: str) -> None:
    """Keeps a thread where it is: on another core its pace may be another by a half, for as long as a round takes."""
    thread = next(thread for thread in threading.enumerate() if name in thread.name)
    assert thread.native_id is not None
    os.sched_setaffinity(thread.native_id, {max(os.sched_getaffinity(0))})


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
        _stay_on_one_core("engine")
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
    kept = interval(ratios(rounds["without"], rounds["with"]), 0)
    loss = 1 - kept.low + watch.times.budget.share
    body = {
        "pairs": options.pairs,
        "tokens_per_second": {name: median(each) for name, each in rounds.items()},
        "kept_ratio": asdict(kept),
        "windows_share_by_their_own_account": watch.times.budget.share,
        "loss_at_most": loss,
        "limit": LIMIT,
        "period_s": watch.times.budget.period,
        "seen_in_windows": [[asdict(sample) for sample in each] for each in (first, *seen)],
        "rounds": rounds,
    }
    command = f"TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost --pairs {options.pairs}"
    made = document("server_cost", command, described(), body)
    text = json.dumps(made, indent=1)
    if options.output is not None:
        options.output.write_text(text)
    sys.stdout.write(
        f"{body['tokens_per_second']} tokens a second; kept {kept.median:.4f} [{kept.low:.4f}, {kept.high:.4f}], "
        f"windows {watch.times.budget.share:.1%}, one each {watch.times.budget.period:.1f} s: lost at most {loss:.2%}\n"
    )
    return 0 if loss <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
