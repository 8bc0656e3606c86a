"""Where the time of cold calls goes, against the caller's clock; and tiers, against the files Triton writes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh, samples_of
from tritonprobe.adapter.core import check_version
from tritonprobe.model import ColdCall, Tier
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls, compile_only, no_cold_calls

X = torch.empty(64)
H = torch.empty(64 * 64, dtype=torch.float16)
NAME = "tests.adapter.kernels.add_kernel"


def timed(call: Callable[[], Any]) -> tuple[int, list[ColdCall]]:
    """The caller's clock around one call, and the cold calls in it."""
    with capture_cold_calls() as calls:
        start = time.monotonic_ns()
        call()
        wall = time.monotonic_ns() - start
    return wall, calls


def accounted(prepare: Callable[[], Callable[[], Any]], tries: int = 5) -> ColdCall:
    """The cold call that ``prepare()()`` makes, once what no phase names is at most 5% of the caller's time, or 1 ms.

    The caller's clock also sees whatever else the machine runs in between, so a row may be tried again, as cold as
    before.
    """
    for _ in range(tries):
        wall, (call,) = timed(prepare())
        named = sum(ns for phase, ns in call.phases if phase != "other")
        assert sum(ns for _, ns in call.phases) == call.wall_ns
        assert all(ns >= 0 for _, ns in call.phases)
        assert call.wall_ns <= wall
        if wall - named <= max(0.05 * wall, 1e6):
            return call
    raise AssertionError(f"{(wall - named) / 1e6:.2f} of {wall / 1e6:.2f} ms have no name: {dict(call.phases)}")


def tier_counts(runtime: Runtime, tier: Tier) -> float:
    return sum(n for (_, _, t), n in samples_of(runtime, "cache_lookups_total").items() if t == tier)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Points Triton at another empty cache folder, each time it is called."""
    made = iter(range(1000))
    return lambda: monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"cache-{next(made)}"))


def _tuned() -> Any:
    configs = [triton.Config({"SIZE": s}, num_warps=w) for s in (16, 32) for w in (4, 8)]
    return triton.autotune(configs=configs, key=["n"])(fresh(kernels.dot_kernel))


def test_a_compile_is_accounted_for(instrumented: Runtime, empty_cache: Callable[[], None]) -> None:
    def cold() -> Callable[[], Any]:
        empty_cache()
        kernel = fresh(kernels.dot_kernel)
        return lambda: kernel[(1,)](H, H, H, 64, SIZE=16)

    assert accounted(cold).tier == "compile"


def test_another_constexpr_is_accounted_for(instrumented: Runtime, empty_cache: Callable[[], None]) -> None:
    def cold() -> Callable[[], Any]:
        empty_cache()
        kernel = fresh(kernels.dot_kernel)
        kernel[(1,)](H, H, H, 64, SIZE=16)
        return lambda: kernel[(1,)](H, H, H, 64, SIZE=32)

    call = accounted(cold)
    assert call.tier == "compile"
    assert call.reasons[-1] in ("constexpr SIZE: 16 -> 32", "same variant, other in-memory key")


def test_a_tuning_is_accounted_for_with_nothing_compiled(
    instrumented: Runtime, empty_cache: Callable[[], None]
) -> None:
    def cold() -> Callable[[], Any]:
        empty_cache()
        tuned = _tuned()
        return lambda: tuned[(1,)](H, H, H, 64)

    call = accounted(cold)
    assert call.tier == "compile"
    assert dict(call.phases)["autotune"] > 0


def test_a_tuning_is_accounted_for_with_everything_compiled(
    instrumented: Runtime, empty_cache: Callable[[], None]
) -> None:
    def cold() -> Callable[[], Any]:
        tuned = _tuned()
        tuned[(1,)](H, H, H, 64)
        return lambda: tuned[(1,)](H, H, H, 128)  # 64 and 128 are both multiples of 16: the same variants

    assert accounted(cold).tier == "memory"


def test_the_first_kernel_of_a_process_is_accounted_for(cache: Path) -> None:
    """One-time work of a process (hashing Triton, asking ptxas, imports) has a name of its own."""
    script = Path(__file__).with_name("first_kernel.py")
    for tier in ("compile", "disk"):
        found = json.loads(subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout)
        assert found["tier"] == tier
        assert found["phases"]["process_init"] > 0
        named = sum(ns for phase, ns in found["phases"].items() if phase != "other")
        assert found["wall"] - named <= max(0.05 * found["wall"], 1e6), found


def test_a_compile_names_every_stage(instrumented: Runtime, add: Any) -> None:
    _, (call,) = timed(lambda: add(X, X, X, 64))

    assert {"lookup", "frontend", "ttir", "ttgir", "llir", "ptx", "cubin", "cache_read", "cache_write", "binder"} <= {
        phase for phase, ns in call.phases if ns > 0
    }


def test_a_warm_disk_cache_reads_and_compiles_nothing(instrumented: Runtime, add: Any, cache: Path) -> None:
    add(X, X, X, 64)
    before = cubins_in(cache)

    def cold() -> Callable[[], Any]:
        again = fresh(kernels.add_kernel)
        return lambda: again[(1,)](X, X, X, 64, BLOCK=128)

    call = accounted(cold)
    assert call.tier == "disk"
    assert not {"ttir", "cubin"} & dict(call.phases).keys()
    assert cubins_in(cache) == before == 1


def test_the_compile_tier_counts_the_binaries_written(instrumented: Runtime, add: Any, cache: Path) -> None:
    for n in (1, 3, 16, 3, 1 << 40):
        add(X, X, X, n)
    add(X, X, X, 3, num_warps=8)
    add(X, X, X, 3, num_warps=4)
    add.kernel.warmup(X, X, X, 3, BLOCK=64, grid=(1,))
    tuned = triton.autotune(configs=[triton.Config({"SIZE": s}) for s in (16, 32)], key=["n"])(
        fresh(kernels.dot_kernel)
    )
    tuned[(1,)](H, H, H, 64)

    assert tier_counts(instrumented, "compile") == cubins_in(cache) == 8
    assert tier_counts(instrumented, "disk") == 1  # num_warps=4 spelt out


def test_many_threads_compile_tier_equals_cubin_puts(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """Triton has no lock: threads that miss together compile the same variant several times, and each is counted."""
    from triton.runtime.cache import FileCacheManager

    puts: list[str] = []
    put = FileCacheManager.put

    def counted(self: Any, data: Any, filename: str, binary: bool = True) -> str:
        if filename.endswith(".cubin"):
            puts.append(filename)
        return put(self, data, filename, binary=binary)

    monkeypatch.setattr(FileCacheManager, "put", counted)
    kernel = fresh(kernels.add_kernel)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for n in (3, 16):
            kernel[(1,)](X, X, X, n, BLOCK=64)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert tier_counts(instrumented, "compile") == len(puts) >= 2


def test_memory_hits_are_what_is_left(instrumented: Runtime, add: Any) -> None:
    from tritonprobe.ledger.schema import LOOKUPS

    for n in (1, 3, 5, 16, 32, 1):
        add(X, X, X, n)

    seen = samples_of(instrumented, LOOKUPS.name)
    assert tier_counts(instrumented, "compile") == 3
    assert sum(v for (_, _, tier), v in seen.items() if tier == "memory") == 3


def test_the_first_launch_after_a_warm_up_only_loads(instrumented: Runtime, add: Any) -> None:
    add.kernel.warmup(X, X, X, 64, BLOCK=128, grid=(1,))
    _, (call,) = timed(lambda: add(X, X, X, 64))

    assert call.tier == "memory"
    assert call.bucket == "n<=64"
    assert "module_load" in dict(call.phases)
    assert call.reasons == ("first launch of a variant that was compiled before",)


def test_a_cold_call_that_raises_says_so_and_ends(instrumented: Runtime) -> None:
    kernel = fresh(kernels.broken_kernel)
    with capture_cold_calls() as calls, pytest.raises(triton.CompilationError):
        kernel[(1,)](X, 3, BLOCK=64)

    assert [call.error for call in calls] == ["CompilationError"]
    assert instrumented.adapter.calls.current is None


def test_a_kernel_launched_from_anothers_grid_keeps_its_own_lookups(instrumented: Runtime) -> None:
    outer, inner = fresh(kernels.add_kernel), fresh(kernels.scale_kernel)

    def grid(meta: Any) -> tuple[int]:
        inner[(1,)](X, 2.0, X, 64, BLOCK=64)
        return (1,)

    _, (call,) = timed(lambda: outer[grid](X, X, X, 64, BLOCK=64))

    assert call.kernel == NAME
    assert {(found.kernel, found.tier) for found in call.lookups} == {
        (NAME, "compile"),
        ("tests.adapter.kernels.scale_kernel", "compile"),
    }


def test_cold_calls_of_two_threads_do_not_mix(instrumented: Runtime) -> None:
    a, b = fresh(kernels.add_kernel), fresh(kernels.scale_kernel)
    with capture_cold_calls() as calls:
        threads = [
            threading.Thread(target=lambda: a[(1,)](X, X, X, 64, BLOCK=64)),
            threading.Thread(target=lambda: b[(1,)](X, 2.0, X, 64, BLOCK=64)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(call.kernel for call in calls) == [NAME, "tests.adapter.kernels.scale_kernel"]
    for call in calls:
        assert sum(ns for _, ns in call.phases) == call.wall_ns
        assert [found.kernel for found in call.lookups] == [call.kernel]


def test_a_compile_outside_of_a_launch_is_a_cold_call_of_its_own(instrumented: Runtime, cache: Path) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = fresh(kernels.add_kernel)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(kernel, signature, {("BLOCK"): 64})
    with capture_cold_calls() as calls:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        triton.compile(source, target=GPUTarget("cuda", 90, 32))

    assert [(call.kernel, call.kind, call.tier) for call in calls] == [
        (NAME, "compile", "compile"),
        (NAME, "compile", "disk"),
    ]
    assert cubins_in(cache) == 1


def test_a_failed_compile_outside_of_a_launch_does_not_swallow_the_next_cold_call(instrumented: Runtime) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    broken = ASTSource(fresh(kernels.broken_kernel), {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {("BLOCK"): 64})
    with capture_cold_calls() as calls:
        with pytest.raises(triton.CompilationError):
            triton.compile(broken, target=GPUTarget("cuda", 90, 32))
        fresh(kernels.add_kernel)[(1,)](X, X, X, 64, BLOCK=64)

    assert [call.kernel for call in calls] == ["tests.adapter.kernels.broken_kernel", NAME]
    assert calls[1].phases != calls[0].phases


def test_hot_launches_are_no_cold_calls(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    with no_cold_calls():
        for _ in range(100):
            add(X, X, X, 64)


def test_no_cold_calls_names_the_kernel_and_the_reason(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    with pytest.raises(AssertionError, match=r"add_kernel n<=1: compile.*n: %16 -> ==1"), no_cold_calls():
        add(X, X, X, 1)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
def test_every_target_compiles(instrumented: Runtime, add: Any, target: str, cache: Path) -> None:
    with compile_only(target):
        add(X, X, X, 64)
        assert instrumented.device == f"compile-only:{target}"

    assert cubins_in(cache) == 1


def test_after_ready_each_cold_call_is_an_incident(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    assert samples_of(instrumented, "cold_calls_after_ready_total") == {
        (tier,): 0 for tier in ("memory", "disk", "remote", "compile")
    }
    tritonprobe.ready()
    add(X, X, X, 64)
    add(X, X, X, 3)

    assert samples_of(instrumented, "cold_calls_after_ready_total")[("compile",)] == 1
    assert samples_of(instrumented, "cold_calls_after_ready_by_kernel_total") == {(NAME, "n<=4", "compile"): 1}


def test_the_oldest_cold_call_in_progress_is_a_gauge_only_while_there_is_one(
    instrumented: Runtime, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class Source:
        def make_ir(self, *args: Any, **kwargs: Any) -> Any:
            seen.extend(samples_of(instrumented, "cold_call_start_timestamp_seconds").values())
            return original(self, *args, **kwargs)

    from triton.compiler.compiler import ASTSource

    original = ASTSource.make_ir
    monkeypatch.setattr(ASTSource, "make_ir", Source.make_ir)
    before = time.time()
    add(X, X, X, 64)

    assert len(seen) == 1
    assert before <= seen[0] <= time.time()
    assert samples_of(instrumented, "cold_call_start_timestamp_seconds") == {}


@pytest.mark.parametrize("version", ["3.5.1", "2.3.0", "3.0", "nonsense"])
def test_an_old_triton_is_refused_in_one_sentence(version: str) -> None:
    from tritonprobe.adapter.core import UnsupportedTriton

    with pytest.raises(
        UnsupportedTriton, match=rf"needs triton 3.6 or newer, and this process has {version}: pip install"
    ):
        check_version(version)
