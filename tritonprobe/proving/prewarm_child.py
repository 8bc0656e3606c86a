"""The process that `prewarm` measures in. Run as ``python -m tritonprobe.proving.prewarm_child``.

Touches Triton as its users do: ``triton.autotune`` on a kernel of `kernels`, launched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonprobe.proving.processes import Answer, Request, Say, answer


def main(request: Request, say: Say) -> Answer:
    import torch
    import triton

    from tritonprobe.adapter.device import is_compile_only
    from tritonprobe.prewarming.run import Tuning
    from tritonprobe.probe import instrument
    from tritonprobe.proving.document import described
    from tritonprobe.proving.kernels import matmul_kernel
    from tritonprobe.runtime import current
    from tritonprobe.shapes.census import Census
    from tritonprobe.testing import capture_cold_calls

    instrument()
    side, census = request["side"], Path(request["census"])
    device = "cpu" if is_compile_only() else "cuda"
    a, b = (torch.randn(side, side, device=device).half() for _ in range(2))
    out = torch.empty_like(a)
    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for m in (64, 128)
        for n in (64, 128, 256)
        for k in (32, 64)
        for warps, stages in ((4, 3), (8, 4))
    ]
    tuner = triton.autotune(configs=configs, key=["M", "N", "K"])(matmul_kernel)

    def grid(meta: Mapping[str, int]) -> tuple[int, int]:
        return triton.cdiv(side, meta["BLOCK_M"]), triton.cdiv(side, meta["BLOCK_N"])

    def call() -> None:
        tuner[grid](a, b, out, side, side, side, *a.stride(), *b.stride(), *out.stride(), PRECISION="tf32")

    _finish(device)
    if request["part"] == "serial":
        seconds = _timed(call, device)
        current().census().save(census)
        say(f"Triton's own first call: {seconds:.2f} s")
        return {"serial": seconds, "serial_winner": str(tuner.best_config), "made": described()}

    found = Census.load(census)
    # What the first process chose is taken away: this one has to choose for itself.
    found = replace(found, tunings={k: replace(t, measured=False) for k, t in found.tunings.items()})
    begin = time.perf_counter()
    result = current().prewarm(found, tune=None if is_compile_only() else Tuning())
    _finish(device)
    prewarmed = time.perf_counter() - begin
    say(f"prewarmed: {prewarmed:.2f} s, {len(result.skipped)} skipped")
    with capture_cold_calls() as cold:
        first = _timed(call, device)
    winner = str(tuner.best_config)
    seconds_of = {} if is_compile_only() else {str(config): _alone(tuner, config, call) for config in configs}
    return {
        "prewarmed": prewarmed,
        "first_call": first,
        "cold_after": len(cold),
        "cubins": len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin"))),
        "winner": winner,
        "best": min(seconds_of, key=lambda text: seconds_of[text]) if seconds_of else winner,
        "seconds": seconds_of,
        "threads": min(16, len(os.sched_getaffinity(0))),
        "made": described(),
    }


def _alone(tuner: Any, config: Any, call: Any) -> float:
    """One configuration's time, as the only winner there is."""
    from tritonprobe.adapter.trials import on_device

    before = dict(tuner.cache)
    tuner.cache.update(dict.fromkeys(before, config))
    try:
        return min(on_device(call, 0.1) for _ in range(3))
    finally:
        tuner.cache.update(before)


def _timed(call: Any, device: str) -> float:
    begin = time.perf_counter()
    call()
    _finish(device)
    return time.perf_counter() - begin


def _finish(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer(main)
