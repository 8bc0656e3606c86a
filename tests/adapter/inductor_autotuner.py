"""Inductor's autotuner as Inductor makes it, on the compile-only device: what asks for CUDA is answered here.

Everything else is torch's own code: `CachingAutotuner`, its compile results and launchers, Triton's compiler below.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
from torch._inductor.runtime.triton_heuristics import (  # type: ignore[attr-defined]  # it exports neither
    CachingAutotuner,
    StaticallyLaunchedCudaKernel,
)

from tests.adapter import kernels


@triton.jit
def triton_poi_fused_add_3(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex, xmask) + tl.load(in_ptr1 + xindex, xmask), xmask)


class Device:
    """`torch._dynamo.device_interface` of a machine with one device."""

    @staticmethod
    def exchange_device(index: int) -> int:
        return index

    @staticmethod
    def maybe_exchange_device(index: int) -> int:
        return index

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def synchronize(device: int) -> None:
        pass

    @staticmethod
    def get_raw_stream(device: int) -> int:
        return 0


class StaticLauncher:
    """`torch._C._StaticCudaLauncher`, which a build of torch without CUDA does not have."""

    loaded: ClassVar[list[str]] = []
    launched: ClassVar[list[int]] = []

    @staticmethod
    def _load_kernel(path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
        StaticLauncher.loaded.append(name)
        function_registers_spills = (2, 32, 0)
        owns_module = hasattr(StaticallyLaunchedCudaKernel, "close")  # torch 2.12 and newer
        return (1, *function_registers_spills) if owns_module else function_registers_spills

    @staticmethod
    def _launch_kernel(function: int, x: int, *rest: Any) -> None:
        StaticLauncher.launched.append(x)

    @staticmethod
    def _unload_kernel(module: int) -> None:
        pass


class Autotuner(CachingAutotuner):
    def get_device_interface(self) -> type[Device]:
        return Device


def make(blocks: tuple[int, ...] = (128,), name: str = "triton_poi_fused_add_3") -> Autotuner:
    """A fused addition with one configuration for each block size, nothing compiled."""
    return _make(triton_poi_fused_add_3, blocks, name, "XBLOCK", "xnumel", custom=False)


def make_user() -> Autotuner:
    """What Inductor makes of a user's `add_kernel` inside a compiled function."""
    return _make(kernels.add_kernel, (128,), "add_kernel_0", "BLOCK", "n", custom=True)


def _make(original: Any, blocks: tuple[int, ...], name: str, block: str, numel: str, custom: bool) -> Autotuner:
    kernel = triton.jit(original.fn)
    grid = f"({numel} + {blocks[0] - 1}) // {blocks[0]}"
    fixed = {"grid_type": "PrecomputedGrid", "precomputed_grids": [{"config": {}, "python": [grid, "1", "1"]}]}
    signature = dict(zip(kernel.arg_names, ["*fp32"] * 3 + ["i32", "constexpr"], strict=True))
    return Autotuner(
        kernel,
        triton_meta={
            "signature": signature,
            "device": DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, warp_size=32),
            "constants": {},
            "configs": [{(i,): [["tt.divisibility", 16]] for i in range(4)}],
        },
        configs=[triton.Config({block: size}, num_warps=4, num_stages=1) for size in blocks],
        save_cache_hook=None,
        mutated_arg_names=[],
        optimize_mem=False,
        heuristic_type=HeuristicType.USER_AUTOTUNE if custom else HeuristicType.POINTWISE,
        size_hints={"x": 1024},
        inductor_meta={"kernel_name": name, **(fixed if custom else {"grid_type": "Grid1D"})},
        custom_kernel=custom,
    )


@contextmanager
def on_the_compile_only_device() -> Iterator[list[int]]:
    """Inductor keeps the active driver, and a benchmark launches three times; yields the launches of each."""
    ran: list[int] = []
    times = itertools.count(1)

    def benchmark(fn: Any, **_: Any) -> float:
        for _i in range(3):
            fn()
        ran.append(3)
        return float(next(times))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
        for name in ("benchmark", "benchmark_gpu"):  # torch 2.9 calls the second
            patch.setattr(benchmarker, name, benchmark)
        patch.setattr(torch._C, "_StaticCudaLauncher", StaticLauncher, raising=False)
        yield ran
