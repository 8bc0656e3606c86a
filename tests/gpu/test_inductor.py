"""Inductor on a GPU: its own compiler, worker processes, static launcher and caches. Each count has a second source.

Run with ``-s``: each test says what it saw, whether it holds or not.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tritonprobe
from tests.adapter import kernels
from tritonprobe import runtime as runtime_module
from tritonprobe.adapter.inductor_cold import COMPILED_HERE, FROM_FX_CACHE
from tritonprobe.adapter.inductor_names import PREFIX, canonical_name
from tritonprobe.adapter.inductor_workers import COMPILED_IN_WORKERS, KIND
from tritonprobe.adapter.inductor_workers import PHASE as WORKERS
from tritonprobe.ledger import Sample
from tritonprobe.model import ColdCall
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.testing import capture_cold_calls

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
USER = "tests.adapter.kernels.add_kernel"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path) -> Iterator[None]:
    """Empty caches, on the disk and in memory; Inductor compiles in this process."""
    import torch._inductor.utils

    torch._dynamo.reset()
    with torch._inductor.utils.fresh_cache(dir=str(tmp_path)), torch._inductor.config.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    fresh = Runtime(Settings())
    monkeypatch.setattr(runtime_module, "_current", fresh)
    yield fresh
    tritonprobe.uninstrument()
    assert fresh.adapter.calls.current is None, "a cold call was left open"
    assert not sum(samples(fresh, "errors_total").values()), "tritonprobe counted faults of its own"


@pytest.fixture
def instrumented(runtime: Runtime) -> Runtime:
    tritonprobe.instrument()
    return runtime


def samples(runtime: Runtime, metric: str) -> dict[tuple[str, ...], float]:
    for family in runtime.ledger.collect():
        if family.metric.name == metric:
            return {sample.labels: sample.value for sample in family.samples if isinstance(sample, Sample)}
    return {}


def by_kernel(runtime: Runtime, metric: str = "launches_total") -> Counter[str]:
    found: Counter[str] = Counter()
    for labels, value in samples(runtime, metric).items():
        found[labels[0]] += int(value)
    return found


def say(*lines: object) -> None:
    sys.stdout.write("\n" + "\n".join(f"    {line}" for line in lines) + "\n")


def told(calls: list[ColdCall]) -> list[str]:
    return [
        f"{c.kernel} {c.bucket} {c.kind} {c.mode} {c.tier} {c.wall_ns / 1e6:.2f} ms, error {c.error}: "
        f"{'; '.join(c.reasons)}; "
        + ", ".join(f"{phase} {ns / 1e6:.2f}" for phase, ns in c.phases)
        + ("" if c.tuning is None else f"; {len(c.tuning.trials)} trials, winner {c.tuning.winner}")
        for c in calls
    ]


def unexplained(call: ColdCall) -> int:
    return call.wall_ns - sum(ns for phase, ns in call.phases if phase != "other")


def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Several kernels: pointwise, and two reductions over different dimensions."""
    z = torch.relu(x + y) * 2
    return torch.softmax(z, dim=-1) + torch.softmax(z, dim=0).sum(dim=0)


def inputs(rows: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, 1024, device="cuda"), torch.randn(rows, 1024, device="cuda")


def equal(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def triton_kernels_run(call: Callable[[], object]) -> Counter[str]:
    """The Inductor kernels the GPU ran, by name, as the profiler saw them."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    on_gpu = [e.name for e in seen.events() if e.device_type.name == "CUDA"]
    return Counter(canonical_name(name) for name in on_gpu if name.startswith("triton_"))


def autotuners() -> list[Any]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    # Not isinstance, which asks weak proxies for what they stand for.
    return [found for found in gc.get_objects() if issubclass(type(found), CachingAutotuner)]


@contextmanager
def outer_clock(monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[list[tuple[str, int]]]:
    """Times each call of a method of Inductor's autotuner from outside of whatever wraps it now."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    taken: list[tuple[str, int]] = []
    inner = getattr(CachingAutotuner, method)

    @functools.wraps(inner)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.monotonic_ns()
        try:
            return inner(self, *args, **kwargs)
        finally:
            taken.append((canonical_name(self.inductor_meta.get("kernel_name", "")), time.monotonic_ns() - start))

    with monkeypatch.context() as patch:
        patch.setattr(CachingAutotuner, method, timed)
        yield taken


def test_launches_equal_what_the_gpu_ran(instrumented: Runtime) -> None:
    function = torch.compile(fused)
    x, y = inputs()
    function(x, y)
    before = by_kernel(instrumented)

    ran = triton_kernels_run(lambda: [function(x, y) for _ in range(7)])
    profiled = by_kernel(instrumented) - before
    say(f"gpu ran {dict(ran)}", f"counted {dict(profiled)}")
    assert profiled == ran
    assert sum(ran.values()) >= 14

    for _ in range(100):  # without a profiler Inductor launches another way
        function(x, y)
    torch.cuda.synchronize()
    plain = by_kernel(instrumented) - before - profiled
    assert plain == Counter({kernel: count // 7 * 100 for kernel, count in ran.items()})


def test_each_kernel_is_cold_once_and_its_time_is_the_caller_s(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = torch.compile(fused)
    x, y = inputs()
    with outer_clock(monkeypatch, "precompile") as taken, capture_cold_calls() as calls:
        start = time.monotonic()
        first = function(x, y)
        torch.cuda.synchronize()
        wall = time.monotonic() - start
    say(f"first call {wall:.2f} s, of which precompile {[(n, f'{ns / 1e6:.2f} ms') for n, ns in taken]}", *told(calls))
    with capture_cold_calls() as later:
        second = function(x, y)

    assert later == []
    equal(first, fused(x, y))
    equal(second, first)
    for call in calls:
        assert unexplained(call) <= max(call.wall_ns / 20, 1_000_000)
    precompiled = [call for call in calls if call.tuning is None]  # the others' launches found several launchers
    assert [call.kernel for call in precompiled] == [kernel for kernel, _ in taken]
    for call, (_, ns) in zip(precompiled, taken, strict=True):
        assert 0 <= ns - call.wall_ns <= max(ns / 20, 1_000_000)
        assert (call.kind, call.tier, call.mode, call.error) == (KIND, "compile", "launch", None)
        assert COMPILED_HERE in call.reasons
        assert {"frontend", "ttir", "cubin", "module_load"} <= dict(call.phases).keys()


def test_the_static_launcher_is_still_used_and_no_launch_hook_is_set(instrumented: Runtime) -> None:
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult
    from triton import knobs

    known = {id(one) for one in autotuners()}
    function = torch.compile(fused)
    function(*inputs())
    used = [one for one in autotuners() if id(one) not in known and one.launchers]
    results = [type(result).__name__ for one in used for result in one.compile_results]
    say(f"compile results {Counter(results)}")

    assert results
    assert set(results) == {StaticTritonCompileResult.__name__}
    assert not knobs.runtime.launch_enter_hook.calls
    assert not knobs.runtime.launch_exit_hook.calls


@pytest.mark.slow
def test_worker_processes_are_waited_for_under_a_name(instrumented: Runtime) -> None:
    from torch._inductor.async_compile import AsyncCompile

    with torch._inductor.config.patch(compile_threads=4):
        AsyncCompile.wait_pool_ready()
        function = torch.compile(fused)
        x, y = inputs()
        with capture_cold_calls() as calls:
            first = function(x, y)
        say(*told(calls))
    equal(first, fused(x, y))

    waited = [call for call in calls if WORKERS in dict(call.phases)]
    assert waited, "nothing was compiled in a worker process"
    for call in waited:
        assert (call.kind, call.tier, call.error) == (KIND, "compile", None)
        assert COMPILED_IN_WORKERS in call.reasons
        assert unexplained(call) <= max(call.wall_ns / 20, 1_000_000)
    assert {call.kernel for call in calls} == set(by_kernel(instrumented))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_a_second_process_with_the_same_caches_compiles_nothing(threads: int) -> None:
    def process() -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.inductor_process", str(threads)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    cold, warm = process(), process()
    say("first process:", *cold["calls"], cold["lookups"], "second process:", *warm["calls"], warm["lookups"])

    assert cold["equal"]
    assert warm["equal"]
    assert (cold["errors"], warm["errors"]) == ([], [])
    assert {call["tier"] for call in cold["calls"]} == {"compile"}
    assert sum(warm["graph_cache_hits"].values()) >= 1
    assert sum(cold["graph_cache_hits"].values()) == 0
    assert {call["tier"] for call in warm["calls"]} == {"disk"}
    assert {FROM_FX_CACHE} == {call["reasons"][0] for call in warm["calls"]}
    assert all("cubin" not in call["phases"] for call in warm["calls"])
    assert not [lookup for lookup in warm["lookups"] if lookup[2] == "compile"]
    assert warm["launches"] == cold["launches"]


def test_tuning_counts_its_trials_apart(instrumented: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch._inductor.config.patch(max_autotune_pointwise=True):
        function = torch.compile(fused)
        x, y = inputs()
        with outer_clock(monkeypatch, "maybe_clone_args") as cloned, capture_cold_calls() as calls:
            first = function(x, y)
        launched = by_kernel(instrumented)
        ran = triton_kernels_run(lambda: function(x, y))
    say(*told(calls), f"trials {dict(by_kernel(instrumented, 'autotune_trials_total'))}", f"launches {dict(launched)}")

    equal(first, fused(x, y))
    tuned = [call for call in calls if call.tuning is not None]
    assert tuned
    for call in tuned:
        assert call.tuning is not None
        assert len(call.tuning.trials) > 1
        assert call.tuning.winner is not None
        assert any(trial.seconds for trial in call.tuning.trials)
        assert dict(call.phases)["autotune"] > 0
        assert unexplained(call) <= max(call.wall_ns / 20, 1_000_000)
    assert by_kernel(instrumented, "autotune_trials_total") == Counter(kernel for kernel, _ in cloned)
    assert launched == ran  # one call each: no trial was taken for a launch


def test_buckets_follow_the_numels_of_dynamic_shapes(instrumented: Runtime) -> None:
    function = torch.compile(lambda x, y: torch.relu(x + y) * 2, dynamic=True)
    for rows in (3, 100, 100, 700):
        x, y = inputs(rows)
        equal(function(x, y), torch.relu(x + y) * 2)
    launched = samples(instrumented, "launches_total")
    say(launched)
    assert sorted(launched.values()) == [1, 1, 2]
    assert {bucket for _, bucket in launched} == {"xnumel<=4096", "xnumel<=131072", "xnumel<=1048576"}


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A user's Triton kernel inside a compiled function."""
    out = torch.empty_like(x)
    kernels.add_kernel[(x.numel() // 128,)](x, y, out, x.numel(), BLOCK=128)
    return out * 2


@pytest.mark.parametrize("how", ["instrument", "probe", "probe, then instrument"])
def test_a_user_s_kernel_in_a_compiled_function_works_and_keeps_its_name(runtime: Runtime, how: str) -> None:
    if "probe" in how:
        assert tritonprobe.probe(kernels.add_kernel) is kernels.add_kernel
    if "instrument" in how:
        tritonprobe.instrument()
    x, y = inputs()
    with capture_cold_calls() as calls:
        function = torch.compile(added)
        for _ in range(3):
            equal(function(x, y), (x + y) * 2)
    launched = by_kernel(runtime)
    say(how, dict(launched), *told(calls))
    assert launched[USER] == 3
    inductors = [kernel for kernel in launched if kernel.startswith(PREFIX)]
    assert bool(inductors) == ("instrument" in how)
    assert len([call for call in calls if call.kernel == USER]) == 1

    equal(added(x, y), (x + y) * 2)  # and outside of it, through Triton's own launch
    assert by_kernel(runtime)[USER] == 4


def test_cuda_graphs_are_captured_and_replayed_as_before(instrumented: Runtime) -> None:
    function = torch.compile(fused, mode="reduce-overhead")
    x, y = inputs()
    for _ in range(5):
        equal(function(x, y).clone(), fused(x, y))
    before = by_kernel(instrumented)
    equal(function(x, y).clone(), fused(x, y))
    say(f"launches until replay {dict(before)}, by a replay {dict(by_kernel(instrumented) - before)}")
    assert by_kernel(instrumented) == before  # a replay launches a graph, not kernels


def test_autograd_works_as_before(runtime: Runtime) -> None:
    """The compiled gradient with the probe is the compiled gradient without it, bit by bit."""
    x, y = inputs()
    x.requires_grad_()

    def gradient() -> torch.Tensor:
        torch._dynamo.reset()
        (found,) = torch.autograd.grad(torch.compile(fused)(x, y).square().sum(), x)
        return found

    plain = gradient()
    tritonprobe.instrument()
    assert torch.equal(gradient(), plain)
    assert sum(by_kernel(runtime).values()) > 0


def fingerprint() -> list[Any]:
    from torch._inductor.async_compile import AsyncCompile, LambdaFuture  # type: ignore[attr-defined]
    from torch._inductor.runtime import triton_heuristics as heuristics
    from triton import knobs

    static: Any = heuristics.StaticallyLaunchedCudaKernel  # type: ignore[attr-defined]
    classes = [heuristics.CachingAutotuner, heuristics.StaticTritonCompileResult, AsyncCompile, LambdaFuture]
    hooks = [knobs.runtime.launch_enter_hook.calls, knobs.runtime.launch_exit_hook.calls]
    return [[dict(vars(cls)) for cls in (*classes, *static.__mro__)], list(sys.meta_path), [list(h) for h in hooks]]


def test_uninstrument_leaves_no_trace_and_compiled_functions_go_on(runtime: Runtime) -> None:
    x, y = inputs()
    before = fingerprint()
    tritonprobe.instrument()
    function = torch.compile(fused)
    first = function(x, y)
    counted = by_kernel(runtime)
    tritonprobe.uninstrument()

    assert fingerprint() == before
    equal(function(x, y), first)
    assert by_kernel(runtime) == counted
    tritonprobe.instrument()
    function(x, y)  # compiled before the probe came
    assert by_kernel(runtime) - counted == counted


def test_what_a_launch_costs(runtime: Runtime) -> None:
    """Paired rounds; the figure is printed. A microsecond would be a wrapper, not a statement."""
    function = torch.compile(lambda x: x + 1)
    x = torch.zeros(16, device="cuda")
    known = {id(one) for one in autotuners()}
    function(x)
    autotuner = next(one for one in autotuners() if id(one) not in known and one.launchers)
    out, stream = torch.empty_like(x), torch.cuda.current_stream().cuda_stream

    def microseconds() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            autotuner.run(x, out, 16, stream=stream)
        return (time.perf_counter() - start) / 500 * 1e6

    rounds = []
    for _ in range(15):
        plain = microseconds()
        tritonprobe.instrument()
        microseconds()
        rounds.append((plain, microseconds()))
        tritonprobe.uninstrument()
    added_us = statistics.median(ours - plain for plain, ours in rounds)
    say(f"a launch {statistics.median(p for p, _ in rounds):.2f} us, with tritonprobe {added_us:+.2f} us")
    assert added_us < 1.0
