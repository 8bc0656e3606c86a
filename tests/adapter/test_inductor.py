"""Inductor's kernels on the compile-only device: torch's own autotuner over Triton's own compiler."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import async_compile
from torch._inductor.async_compile import AsyncCompile, LambdaFuture  # type: ignore[attr-defined]  # not in its __all__
from torch._inductor.runtime import triton_heuristics
from triton import knobs

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import samples_of, total_of
from tests.adapter.inductor_autotuner import Autotuner, StaticLauncher, make, make_user, on_the_compile_only_device
from tritonprobe.adapter import inductor_cold, inductor_workers
from tritonprobe.adapter.inductor_workers import PHASE as WORKERS
from tritonprobe.model import ColdCall, Event, LaunchError
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls, no_cold_calls

X = torch.empty(1024)
NAME = "inductor.triton_poi_fused_add"
USER = "tests.adapter.kernels.add_kernel"


@pytest.fixture(autouse=True)
def benchmarks() -> Iterator[list[int]]:
    with on_the_compile_only_device() as ran:
        StaticLauncher.launched.clear()
        yield ran


def launch(autotuner: Autotuner, n: int = 1000, **kwargs: Any) -> Any:
    return autotuner.run(X, X, X, n, stream=0, **kwargs)


def accounted(call: ColdCall) -> bool:
    unnamed = call.wall_ns - sum(ns for phase, ns in call.phases if phase != "other")
    return unnamed <= max(call.wall_ns / 20, 1_000_000)


def test_launches_are_counted_by_canonical_name_and_bucket(instrumented: Runtime) -> None:
    autotuner = make()
    for n in (1000, 1000, 5, 1000):
        launch(autotuner, n)
    launch(make(name="triton_poi_fused_add_12"))

    assert samples_of(instrumented, "launches_total") == {(NAME, "xnumel<=1024"): 4, (NAME, "xnumel<=8"): 1}
    assert len(StaticLauncher.launched) == 5


def test_precompiling_is_one_cold_call_with_the_callers_time_and_triton_s_phases(instrumented: Runtime) -> None:
    autotuner = make()
    with capture_cold_calls() as calls:
        start = time.monotonic_ns()
        autotuner.precompile()
        wall = time.monotonic_ns() - start

    (call,) = calls
    assert (call.kernel, call.kind, call.tier, call.mode) == (NAME, "inductor", "compile", "launch")
    assert 0 <= wall - call.wall_ns <= max(wall / 20, 1_000_000)
    assert {"lookup", "frontend", "ttir", "cubin", "cache_write", "launcher_build", "module_load"} <= dict(
        call.phases
    ).keys()
    assert accounted(call)
    assert call.reasons == (inductor_cold.COMPILED_HERE,)
    assert call.hash == autotuner.compile_results[0].kernel.hash
    with no_cold_calls():
        launch(autotuner)


def test_a_second_autotuner_of_the_same_kernel_finds_it_on_the_disk(instrumented: Runtime) -> None:
    make().precompile()
    with capture_cold_calls() as calls:
        launch(make())

    (call,) = calls
    assert (call.tier, call.bucket, call.reasons) == ("disk", "xnumel<=1024", (inductor_cold.FOUND_HERE,))
    assert dict(call.phases).keys().isdisjoint({"frontend", "ttir", "cubin"})
    assert "first_launch" in dict(call.phases)


def test_tuning_is_told_with_its_trials_and_its_winner_and_trials_are_no_launches(
    instrumented: Runtime, benchmarks: list[int]
) -> None:
    autotuner = make((64, 128, 256))
    with capture_cold_calls() as calls:
        launch(autotuner)
        launch(autotuner)

    (call,) = calls
    assert call.tuning is not None
    assert [trial.outcome for trial in call.tuning.trials] == ["ok"] * 3
    assert [trial.seconds for trial in call.tuning.trials] == [None] * 3  # nothing is measured on this device
    assert call.tuning.winner == str(autotuner.launchers[0].config)
    assert "autotune" in dict(call.phases)
    assert "no winner yet among 3 configurations" in call.reasons
    assert samples_of(instrumented, "launches_total") == {(NAME, "xnumel<=1024"): 2}
    assert samples_of(instrumented, "autotune_trials_total") == {(NAME, "xnumel<=1024"): sum(benchmarks)}
    assert len(StaticLauncher.launched) == 2 + sum(benchmarks)
    assert {labels[2] for labels in samples_of(instrumented, "cache_lookups_total")} == {"compile", "memory"}


def test_a_benchmark_run_is_a_trial(instrumented: Runtime) -> None:
    autotuner = make()
    with capture_cold_calls() as calls:
        launch(autotuner, benchmark_run=True)
    assert [call.mode for call in calls] == ["trial"]
    assert samples_of(instrumented, "launches_total") == {}
    assert samples_of(instrumented, "autotune_trials_total") == {(NAME, "xnumel<=1024"): 1}


def test_a_launch_that_raises_is_counted_and_the_exception_is_torch_s_own(instrumented: Runtime) -> None:
    autotuner = make()
    launch(autotuner)
    events: list[Event] = []
    with instrumented.bus.subscribed(events.append), pytest.raises(TypeError) as caught:
        autotuner.run(X, stream=0)
    assert "tritonprobe" not in str(caught.value)
    assert events == [LaunchError(NAME, "TypeError", "launch")]
    assert samples_of(instrumented, "launches_total") == {(NAME, "xnumel<=1024"): 1, (NAME, "all"): 1}
    assert samples_of(instrumented, "launch_errors_total") == {(NAME, "TypeError"): 1}


def test_a_user_s_kernel_keeps_its_name(instrumented: Runtime) -> None:
    launch(make_user())
    assert samples_of(instrumented, "launches_total") == {(USER, "n<=1024"): 1}


def test_a_probed_kernel_counts_inside_compiled_functions_and_inductor_s_own_do_not(runtime: Runtime) -> None:
    tritonprobe.probe(bucket={"n": "exact"})(kernels.add_kernel)
    with capture_cold_calls() as calls:
        launch(make_user())
        launch(make())
    assert [call.kernel for call in calls] == [USER]
    assert samples_of(runtime, "launches_total") == {(USER, "n=1000"): 1}

    tritonprobe.instrument()
    launch(make())
    assert samples_of(runtime, "launches_total") == {(USER, "n=1000"): 1, (NAME, "xnumel<=1024"): 1}


def test_an_autotuner_that_is_gone_leaves_nothing_behind(instrumented: Runtime) -> None:
    counts = instrumented.adapter._inductor._counts
    for _ in range(3):
        launch(make())
    gc.collect()
    # torch itself keeps the one that ran last: Triton's allocator is a function made in its `run`.
    assert len(counts.hot) == len(counts._sites) == len(counts._alive) == 1


def test_an_autotuner_pickles_as_it_did(instrumented: Runtime) -> None:
    """Inductor writes its autotuners into the cache of compiled graphs."""
    autotuner = make()
    plain = sorted(vars(autotuner))
    launch(autotuner)
    assert set(vars(autotuner)) - set(plain) <= {"_could_rblock_scale"}  # torch's own cached property


def arrived_from_a_worker() -> Any:
    """An autotuner as a worker process sends it: compiled, pickled, unpickled."""
    autotuner = make()
    autotuner.precompile(warm_cache_only=True)
    autotuner.prepare_for_pickle()
    arrived = pickle.loads(pickle.dumps(autotuner))
    arrived.restore_after_unpickle(None)
    return arrived


@pytest.mark.parametrize(
    ("compiles", "tier", "reason"),
    [("before", "disk", inductor_workers.FOUND_IN_WORKERS), ("after", "compile", inductor_workers.COMPILED_IN_WORKERS)],
)
def test_waiting_for_a_worker_process_has_a_phase_and_a_reason(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, compiles: str, tier: str, reason: str
) -> None:
    """Its cached binary tells whether the worker compiled it, or found it where an earlier process had left it."""
    ready = arrived_from_a_worker()
    if compiles == "before":
        time.sleep(inductor_workers.CLOCK_SLACK_NS / 1e9 + 0.01)

    def get_result() -> Any:
        time.sleep(0.05)  # the worker is busy
        ready.precompile()
        return ready

    monkeypatch.setattr(AsyncCompile, "triton", lambda *_: LambdaFuture(get_result))
    tritonprobe.instrument()
    with monkeypatch.context() as patch:
        if compiles == "after":  # it was submitted long before it was compiled
            long_ago = time.time_ns() - 10_000_000_000
            patch.setattr(time, "time_ns", lambda: long_ago)
        future: Any = AsyncCompile().triton("triton_poi_fused_add_3", "source")
    with capture_cold_calls() as calls:
        assert future.result() is ready
    tritonprobe.uninstrument()

    (call,) = calls
    assert (call.kernel, call.kind, call.tier, call.reasons) == (NAME, "inductor", tier, (reason,))
    assert 50_000_000 <= dict(call.phases)[WORKERS] <= call.wall_ns
    assert accounted(call)


def test_a_kernel_from_a_cached_graph_comes_from_the_disk(runtime: Runtime) -> None:
    ready = arrived_from_a_worker()
    tritonprobe.instrument()
    with capture_cold_calls() as calls:
        ready.precompile()
    assert [(call.tier, call.reasons) for call in calls] == [("disk", (inductor_cold.FROM_FX_CACHE,))]


def fingerprint() -> list[Any]:
    static = triton_heuristics.StaticallyLaunchedCudaKernel  # type: ignore[attr-defined]
    classes = [triton_heuristics.CachingAutotuner, triton_heuristics.StaticTritonCompileResult, AsyncCompile]
    classes += [LambdaFuture, *static.__mro__]
    return [
        [dict(vars(cls)) for cls in classes],
        vars(async_compile).keys(),
        list(sys.meta_path),
        list(knobs.runtime.launch_enter_hook.calls),
        list(knobs.runtime.launch_exit_hook.calls),
    ]


def test_uninstrument_leaves_no_trace(runtime: Runtime) -> None:
    before = fingerprint()
    tritonprobe.instrument()
    assert fingerprint()[0] != before[0]
    # The launch hooks above all: with any, Inductor leaves its static launcher.
    assert fingerprint()[3:] == before[3:]
    launch(make())
    tritonprobe.uninstrument()

    assert fingerprint() == before
    launched = total_of(runtime, "launches_total")
    launch(make())
    assert total_of(runtime, "launches_total") == launched == 1


def test_a_run_that_cannot_be_rewritten_is_wrapped(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = triton_heuristics.CachingAutotuner.run

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(triton_heuristics.CachingAutotuner, "run", theirs)
    tritonprobe.instrument()
    autotuner = make()
    with capture_cold_calls() as calls:
        for n in (1000, 5, 1000):
            launch(autotuner, n)
        launch(autotuner, benchmark_run=True)
        with pytest.raises(TypeError):
            autotuner.run(X, stream=0)
    assert [(call.tier, call.bucket) for call in calls] == [("compile", "xnumel<=1024")]
    assert samples_of(runtime, "launches_total") == {
        (NAME, "xnumel<=1024"): 2,
        (NAME, "xnumel<=8"): 1,
        (NAME, "all"): 1,
    }
    assert total_of(runtime, "autotune_trials_total") == total_of(runtime, "launch_errors_total") == 1
    tritonprobe.uninstrument()


@pytest.mark.slow
def test_a_function_compiled_for_the_cpu_is_none_of_our_business(instrumented: Runtime, tmp_path: Path) -> None:
    import torch._inductor.utils

    x = torch.linspace(-1, 1, 1000)
    function = torch.compile(lambda x: torch.relu(x) * 2 + 1)
    with torch._inductor.utils.fresh_cache(dir=str(tmp_path)), no_cold_calls():
        torch.testing.assert_close(function(x), torch.relu(x) * 2 + 1)
    assert samples_of(instrumented, "launches_total") == {}


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_inductor_imported_after_instrument_is_watched_and_given_back() -> None:
    run("""
        import sys, tritonprobe
        from tritonprobe.testing import compile_only
        with compile_only("cuda:90"):
            before = list(sys.meta_path)
            tritonprobe.instrument()
            assert "torch._inductor.runtime.triton_heuristics" not in sys.modules
            from torch._inductor.runtime.triton_heuristics import CachingAutotuner
            from torch._inductor.async_compile import AsyncCompile, LambdaFuture
            ours = [CachingAutotuner.bench, AsyncCompile.triton, LambdaFuture.result]
            assert all(f.__wrapped__ for f in ours)
            assert "_tritonprobe_hot" in CachingAutotuner.run.__code__.co_freevars
            tritonprobe.uninstrument()
            theirs = [CachingAutotuner.bench, AsyncCompile.triton, LambdaFuture.result]
            assert not any(hasattr(f, "__wrapped__") for f in theirs)
            assert "_tritonprobe_hot" not in CachingAutotuner.run.__code__.co_freevars
            assert not any("tritonprobe" in type(finder).__module__ for finder in sys.meta_path)
    """)


def test_without_torch_nothing_is_missing() -> None:
    run("""
        import sys
        sys.modules["torch"] = None  # `import torch` raises ImportError
        import tritonprobe
        from tritonprobe.testing import compile_only
        before = list(sys.meta_path)
        with compile_only("cuda:90"):
            tritonprobe.instrument()
            tritonprobe.uninstrument()
        assert sys.meta_path == before
        assert not [name for name in sys.modules if name.startswith("torch.")]
    """)
