"""What everything on, GPU windows too, costs the example server: tokens a second, with and without, in turn.

    TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost [--pairs 30] [-o FILE]

One engine in one process, without HTTP. Windows come as often as by default: after the time between two of them, as the
budget has it, spent with the probe on. Exit code 1: the loss may be more than 1%.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict
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

REQUESTS, PROMPT, TOKENS = 16, 256, 64
LIMIT = 0.01
MODEL = ModelConfig(
    layers=8, hidden=1024, heads=16, kv_heads=8, intermediate=2816, vocab=32000, max_len=2048, dtype="bfloat16"
)


def tokens_per_second(engine: Engine) -> float:
    """Of `REQUESTS` requests at once, from the first submitted to the last token."""
    left = threading.Semaphore(0)
    got: list[Token | Failed] = []

    def emit(what: Token | Failed) -> None:
        got.append(what)
        if isinstance(what, Failed) or what.finish_reason:
            left.release()

    start = time.perf_counter()
    for number in range(REQUESTS):
        prompt = [(7 * number + place) % 30000 + 3 for place in range(PROMPT)]
        engine.submit(str(number), prompt, Sampling(max_tokens=TOKENS, ignore_eos=True), emit)
    for _ in range(REQUESTS):
        left.acquire()
    took = time.perf_counter() - start
    assert len(got) == REQUESTS * TOKENS, [each for each in got if isinstance(each, Failed)][:1]
    return len(got) / took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    watch: Any = current().adapter.gpu
    if watch is None:
        parser.error("GPU windows are off: set TRITONPROBE_GPU_WINDOWS=1")
    model = Decoder(MODEL, REQUESTS, torch.device("cuda"))
    with Engine(model, EngineConfig(max_len=MODEL.max_len, vocab=MODEL.vocab, slots=REQUESTS)) as engine:
        for _ in range(3):
            tokens_per_second(engine)
        tritonprobe.instrument()
        watch.times.stop()
        tokens_per_second(engine)
        first = watch.times.window(0.02)
        assert watch.times.info[0] == "cupti", watch.times.info
        tritonprobe.uninstrument()
        rounds: dict[str, list[float]] = {"without": [], "with": []}
        on_for, windows = 0.0, 0
        for base in base_first(options.pairs, 0):
            for without in (base, not base):
                if without:
                    rounds["without"].append(tokens_per_second(engine))
                    continue
                tritonprobe.instrument()
                watch.times.stop()  # its windows come when they are due, but inside a round
                window = None
                if on_for >= watch.times.budget.period:
                    on_for, windows = 0.0, windows + 1
                    window = threading.Thread(target=lambda: watch.times.window(watch.times.budget.seconds))
                    window.start()
                rounds["with"].append(tokens_per_second(engine))
                if window is not None:
                    window.join()
                on_for += REQUESTS * TOKENS / rounds["with"][-1]
                tritonprobe.uninstrument()
    torch.cuda.synchronize()
    kept = interval(ratios(rounds["without"], rounds["with"]), 0)
    body = {
        "pairs": options.pairs,
        "tokens_per_second": {name: median(each) for name, each in rounds.items()},
        "kept_ratio": asdict(kept),
        "loss_at_most": 1 - kept.low,
        "limit": LIMIT,
        "windows": windows,
        "period_s": watch.times.budget.period,
        "kernels_of_the_first_window": [asdict(sample) for sample in first],
        "rounds": rounds,
    }
    command = f"TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost --pairs {options.pairs}"
    made = document("server_cost", command, described(), body)
    text = json.dumps(made, indent=1)
    if options.output is not None:
        options.output.write_text(text)
    sys.stdout.write(
        f"{body['tokens_per_second']} tokens a second; kept {kept.median:.4f} [{kept.low:.4f}, {kept.high:.4f}], "
        f"{windows} windows, one each {watch.times.budget.period:.1f} s\n"
    )
    return 0 if 1 - kept.low <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
