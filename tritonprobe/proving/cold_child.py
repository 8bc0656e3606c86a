"""The process that `cold` measures in: makes cold calls, one after the other, and tells what was seen of each.

Run as ``python -m tritonprobe.proving.cold_child`` with a cache folder of its own in TRITON_CACHE_DIR. Touches Triton
as its users do: kernels, ``triton.autotune``, and the public ``knobs.compilation.listener``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tritonprobe.proving.cold import Sample
from tritonprobe.proving.processes import Answer, Request, Say, answer

SIDES = (1024, 2048)  # of the matrices to tune for; both multiples of 16, so that the variants are the same
SMALL = 64  # of the matrices of a single launch
Call = Callable[[], object]


def main(request: Request, say: Say) -> Answer:
    from tritonprobe.probe import instrument
    from tritonprobe.proving.document import described

    instrument()
    calls = _Calls()
    samples: list[tuple[str, dict[str, Any]]] = []
    for name, call in getattr(calls, request["part"])():
        samples.append((name, asdict(observed(call))))
        say(f"{samples[-1][1]['wall_ns'] / 1e6:,.1f} ms, {name}")
    return {"made": described(), "samples": samples}


def observed(call: Call) -> Sample:
    """Makes one call, between two looks at the caller's clock, and says what tritonprobe and Triton saw of it."""
    from tritonprobe.testing import capture_cold_calls

    before = _cubins()
    with capture_cold_calls() as seen, _listening() as told:
        start = time.perf_counter_ns()
        call()
        wall = time.perf_counter_ns() - start
    _finish()
    phases: Counter[str] = Counter()
    lookups: Counter[str] = Counter()
    for cold in seen:
        phases.update(dict(cold.phases))
        for lookup in cold.lookups:
            lookups[lookup.tier] += lookup.count
    return Sample(
        wall_ns=wall,
        phases=dict(phases),
        tier=seen[0].tier if seen else None,
        lookups=dict(lookups),
        cubins=_cubins() - before,
        listener_ns=sum(told) if told else None,
        listener_calls=len(told),
    )


@contextmanager
def _listening() -> Iterator[list[int]]:
    """What Triton's listener is told meanwhile, in nanoseconds. Whoever listens already goes on listening."""
    from triton import knobs

    before = knobs.compilation.listener
    told: list[int] = []

    def listen(**event: Any) -> None:
        told.append(event["times"].total * 1000)
        if before is not None:
            before(**event)

    knobs.compilation.listener = listen
    try:
        yield told
    finally:
        if knobs.compilation.listener is listen:
            knobs.compilation.listener = before


def _cubins() -> int:
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin")))


def _finish() -> None:
    """Waits for the GPU after the clock was read, so that no call pays for the one before."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class _Calls:
    """The cold calls of each part, in order. What a call needs is made before it: its tensors, its kernel object."""

    def __init__(self) -> None:
        import torch
        import triton

        from tritonprobe.runtime import current
        from tritonprobe_kernels.add import add_kernel
        from tritonprobe_kernels.matmul import matmul_kernel

        self.torch, self.triton = torch, triton
        self.device = "cpu" if current().settings.device else "cuda"
        self.add_function = add_kernel.fn
        self.matmul_function = matmul_kernel.fn.fn

    def compile(self) -> Iterator[tuple[str, Call]]:
        yield "first_compile", self._add()
        matmul = self.triton.jit(self.matmul_function)
        yield "new_signature", self._matmul(matmul, block=32)
        yield "other_constexpr", self._matmul(matmul, block=64)

    def disk(self) -> Iterator[tuple[str, Call]]:
        yield "first_disk", self._add()
        matmul = self.triton.jit(self.matmul_function)
        yield "later_disk", self._matmul(matmul, block=32)
        yield "later_disk", self._matmul(matmul, block=64)

    def tune(self) -> Iterator[tuple[str, Call]]:
        config = self.triton.Config
        configs = [
            config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
            for m in (64, 128)
            for n in (64, 128, 256)
            for k in (32, 64)
            for warps, stages in ((4, 3), (8, 4))
        ]
        tuned = self.triton.autotune(configs=configs, key=["M", "N", "K"])(self.triton.jit(self.matmul_function))
        for name, side in zip(("tune_compile", "tune_again"), SIDES, strict=True):
            yield name, self._product(tuned, side)

    def _add(self) -> Call:
        kernel = self.triton.jit(self.add_function)
        x, y = (self.torch.zeros(1024, device=self.device) for _ in range(2))
        out = self.torch.empty_like(x)
        return lambda: kernel[(1,)](x, y, out, 1024, 1, 1, BLOCK=1024)

    def _matmul(self, kernel: Any, block: int) -> Call:
        return self._product(kernel, SMALL, BLOCK_M=block, BLOCK_N=block, BLOCK_K=32, GROUP_M=8)

    def _product(self, kernel: Any, side: int, **blocks: int) -> Call:
        a, b = (self.torch.zeros(side, side, device=self.device, dtype=self.torch.float16) for _ in range(2))
        out = self.torch.empty_like(a)
        sizes = (side, side, side, 1.0)
        strides = (side, 1, side, 1, 0, side, 1)

        def grid(meta: Mapping[str, int]) -> tuple[int]:
            return (self.triton.cdiv(side, meta["BLOCK_M"]) * self.triton.cdiv(side, meta["BLOCK_N"]),)

        return lambda: kernel[grid](a, b, None, out, *sizes, *strides, ACTIVATION="none", **blocks)


if __name__ == "__main__":
    answer(main)
