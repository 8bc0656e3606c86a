"""What counts as a launch, and what comes of calls that raise. Every count is checked against an independent one."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest
import torch
import triton

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe import probe
from tritonprobe.adapter.device import CompileOnlyLauncher
from tritonprobe.model import Event, LaunchError
from tritonprobe.runtime import Runtime

X = torch.empty(64)
NAME = "tests.adapter.kernels.add_kernel"


def test_launches_are_counted_by_kernel_and_bucket(instrumented: Runtime, add: Any) -> None:
    for n in (3, 100, 100, 5000):
        add(X, X, X, n)

    assert samples_of(instrumented, "launches_total") == {
        (NAME, "n<=4"): 1,
        (NAME, "n<=128"): 2,
        (NAME, "n<=8192"): 1,
    }


def test_what_a_launch_returns_is_unchanged(runtime: Runtime) -> None:
    plain = fresh(kernels.add_kernel)
    before = plain[(1,)](X, X, X, 64, BLOCK=128)

    tritonprobe.instrument()
    after = fresh(kernels.add_kernel)[(1,)](X, X, X, 64, BLOCK=128)

    assert type(after) is type(before)
    assert after.hash == before.hash


@pytest.mark.parametrize(
    ("kernel", "call"),
    [
        (kernels.add_kernel, lambda k: k[(1,)](X, X, out=X, n=64, BLOCK=64)),
        (kernels.add_kernel, lambda k: k.run(X, X, X, 64, BLOCK=64, grid=(1,), warmup=False)),
        (kernels.add_kernel, lambda k: k[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](X, X, X, 64, BLOCK=64)),
        (kernels.defaults_kernel, lambda k: k[(1,)](X, X)),
        (kernels.defaults_kernel, lambda k: k[(1,)](X, X, n=3, BLOCK=32)),
        (kernels.annotated_kernel, lambda k: k[(1, 1)](X, 3, 2.0, BLOCK=64)),
        (kernels.optional_kernel, lambda k: k[(1,)](X, None, X, BLOCK=64)),
        (kernels.tuple_kernel, lambda k: k[(1,)](X, (3, 16), 5, BLOCK=64)),
        (kernels.calling_kernel, lambda k: k[(1, 1, 1)](X, 5, BLOCK=64)),
        (kernels.fixed_kernel, lambda k: k[(1,)](X, BLOCK=64)),
        (kernels.scale_kernel, lambda k: k[(1,)](X, 2.5, X, 64, 64)),
    ],
)
def test_every_calling_convention_works_and_counts_once_a_call(instrumented: Runtime, kernel: Any, call: Any) -> None:
    target = fresh(kernel)
    ran = CompileOnlyLauncher.launches

    for _ in range(3):
        call(target)

    assert total_of(instrumented, "launches_total") == 3
    assert CompileOnlyLauncher.launches - ran == 3


def test_an_empty_grid_is_a_launch(instrumented: Runtime, add: Any) -> None:
    ran = CompileOnlyLauncher.launches
    add.kernel[(0,)](X, X, X, 0, BLOCK=128)

    assert samples_of(instrumented, "launches_total") == {(NAME, "n<=0"): 1}
    assert CompileOnlyLauncher.launches == ran


@pytest.mark.parametrize(
    ("call", "error", "bucket"),
    [
        (lambda k: k[(1,)](X, X), TypeError, "unbound"),
        (lambda k: k[(1,)](X, X, X, 3, BLOCK=128, no_such=1), KeyError, "n<=4"),
        (lambda k: k[lambda meta: 1 // 0](X, X, X, 3, BLOCK=128), ZeroDivisionError, "n<=4"),
        (lambda k: k[(1,)](X, X, X, object(), BLOCK=128), Exception, "unbound"),
    ],
)
def test_a_call_that_raises_is_a_launch_and_an_error_and_the_exception_is_the_kernels_own(
    instrumented: Runtime, add: Any, call: Any, error: type[Exception], bucket: str
) -> None:
    for attempt in range(1, 3):
        with pytest.raises(error) as caught:
            call(add.kernel)
        assert "tritonprobe" not in str(caught.value)
        assert samples_of(instrumented, "launches_total") == {(NAME, bucket): attempt}
        assert total_of(instrumented, "launch_errors_total") == attempt
        assert samples_of(instrumented, "launch_errors_total").keys() == {(NAME, type(caught.value).__name__)}


def test_a_traceback_shows_tritons_own_lines(runtime: Runtime) -> None:
    def frames() -> list[tuple[str, int | None, str]]:
        kernel = fresh(kernels.add_kernel)
        kernel[(1,)](X, X, X, 3, BLOCK=128)
        try:
            kernel[lambda meta: 1 // 0](X, X, X, 3, BLOCK=128)
        except ZeroDivisionError as error:
            return [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)][1:]
        return []

    before = frames()
    tritonprobe.instrument()

    assert frames() == before
    assert len(before) >= 2


def test_a_compile_error_reaches_the_caller_and_is_no_memory_hit(instrumented: Runtime) -> None:
    kernel = fresh(kernels.broken_kernel)
    with pytest.raises(triton.CompilationError):
        kernel[(1,)](X, 3, BLOCK=64)

    name = "tests.adapter.kernels.broken_kernel"
    assert samples_of(instrumented, "launches_total") == {(name, "n<=4"): 1}
    assert samples_of(instrumented, "launch_errors_total") == {(name, "CompilationError"): 1}
    assert samples_of(instrumented, "lookups_failed_total") == {(name, "n<=4"): 1}
    assert sum(v for (k, _, _), v in samples_of(instrumented, "cache_lookups_total").items() if k == name) == 0


def test_warm_ups_are_counted_apart(instrumented: Runtime, add: Any) -> None:
    add.kernel.warmup(torch.float32, torch.float32, torch.float32, 64, BLOCK=128, grid=(1,))
    add.kernel.run(X, X, X, 64, BLOCK=128, grid=(1,), warmup=True)
    add(X, X, X, 64)

    assert samples_of(instrumented, "warmups_total") == {(NAME, "n<=64"): 2}
    assert samples_of(instrumented, "launches_total") == {(NAME, "n<=64"): 1}


def test_kernels_launched_before_the_probe_came_are_counted_from_then_on(runtime: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    tritonprobe.instrument()
    for _ in range(5):
        add(X, X, X, 64)

    assert samples_of(runtime, "launches_total") == {(NAME, "n<=64"): 5}


def test_instrument_twice_counts_once(instrumented: Runtime, add: Any) -> None:
    tritonprobe.instrument()
    add(X, X, X, 64)
    tritonprobe.instrument()
    add(X, X, X, 64)

    assert total_of(instrumented, "launches_total") == 2


def test_uninstrument_leaves_no_trace(runtime: Runtime, add: Any) -> None:
    before = _fingerprint()
    add(X, X, X, 64)
    binder = add.kernel.device_caches[90][4]

    tritonprobe.instrument()
    assert _fingerprint() != before
    add(X, X, X, 64)
    add(X, X, X, 3)
    late = fresh(kernels.scale_kernel)
    late[(1,)](X, 2.0, X, 64, BLOCK=64)
    tritonprobe.uninstrument()

    assert _fingerprint() == before
    assert add.kernel.device_caches[90][4] is binder
    assert late.device_caches[90][4].__code__.co_filename == binder.__code__.co_filename
    assert add.kernel.pre_run_hooks == []
    counted = total_of(runtime, "launches_total")
    add(X, X, X, 64)
    add(X, X, X, 5000)
    assert total_of(runtime, "launches_total") == counted

    tritonprobe.instrument()
    add(X, X, X, 64)
    assert total_of(runtime, "launches_total") == counted + 1


def _fingerprint() -> dict[str, Any]:
    """Every attribute of the classes and modules that the probe touches, by identity."""
    import sys

    from triton.backends import backends
    from triton.compiler import compiler
    from triton.runtime import autotuner, build, cache, interpreter, jit

    owners = [
        jit,
        jit.JITFunction,
        compiler,
        compiler.CompiledKernel,
        compiler.ASTSource,
        cache.FileCacheManager,
        cache.RemoteCacheManager,
        autotuner.Autotuner,
        build,
        interpreter.InterpretedFunction,
        sys.modules["triton.runtime.driver"],
        *(backend.compiler for backend in backends.values()),
    ]
    return {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in vars(owner).items()}


def test_somebody_elses_wrapper_around_ours_keeps_working_after_uninstrument(runtime: Runtime, add: Any) -> None:
    from triton.runtime.jit import JITFunction

    tritonprobe.instrument()
    ours, seen = JITFunction.run, []

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return ours(self, *args, **kwargs)

    JITFunction.run = theirs
    try:
        add(X, X, X, 64)
        tritonprobe.uninstrument()
        assert JITFunction.run is theirs
        add(X, X, X, 64)
        add(X, X, X, 3)
        with pytest.raises(TypeError):
            add.kernel[(1,)](X)
    finally:
        JITFunction.run = _unguarded(ours)

    assert len(seen) == 4
    assert total_of(runtime, "launches_total") == 1
    assert total_of(runtime, "launch_errors_total") == 0


def _unguarded(run: Any) -> Any:
    """Triton's own `run`, for the test that left ours in place on purpose."""
    warm = run.__closure__[run.__code__.co_freevars.index("_tritonprobe_warm")].cell_contents
    return warm.__self__._original


def test_probe_watches_one_kernel_and_returns_it(runtime: Runtime) -> None:
    kernel, other = fresh(kernels.add_kernel), fresh(kernels.scale_kernel)
    assert probe(kernel) is kernel
    kernel[(1,)](X, X, X, 64, BLOCK=64)
    other[(1,)](X, 2.0, X, 64, BLOCK=64)

    assert samples_of(runtime, "launches_total") == {(NAME, "n<=64"): 1}
    assert [call.kernel for call in runtime.cold_calls] == [NAME]


def test_probe_takes_heuristics_and_autotuners(runtime: Runtime) -> None:
    tuned = triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])(fresh(kernels.add_kernel))
    guided = triton.heuristics({"BLOCK": lambda args: 64})(fresh(kernels.scale_kernel))
    assert probe(tuned) is tuned
    assert probe(bucket={"n": "exact"})(guided) is guided

    tuned[(1,)](X, X, X, 64)
    guided[(1,)](X, 2.0, X, 70)

    assert samples_of(runtime, "launches_total") == {
        (NAME, "n=64"): 1,
        ("tests.adapter.kernels.scale_kernel", "n=70"): 1,
    }


@pytest.mark.parametrize("thing", [lambda x: x, 3, "kernel", torch.empty, X])
def test_probe_on_anything_else_names_op(runtime: Runtime, thing: Any) -> None:
    with pytest.raises(TypeError, match=r"@op\(fallback=\.\.\.\)"):
        probe(thing)


def test_a_device_function_still_compiles_into_its_caller_after_probe(runtime: Runtime) -> None:
    probe(kernels._double)
    kernel = probe(fresh(kernels.calling_kernel))
    kernel[(1,)](X, 5, BLOCK=64)

    assert [call.kernel for call in runtime.cold_calls] == ["tests.adapter.kernels.calling_kernel"]


def test_tuning_warming_and_hot_threads_are_told_apart_exactly(instrumented: Runtime) -> None:
    """One thread launches hot while others warm up and tune the same kernel; each count is exact."""
    kernel = fresh(kernels.add_kernel)
    trials = 0

    def do_bench(call: Any, quantiles: Any = None) -> list[float]:
        nonlocal trials
        for _ in range(20):
            call()
            trials += 1
        return [1.0, 1.0, 1.0]

    tuned = triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"], do_bench=do_bench)(
        kernel
    )
    kernel[(1,)](X, X, X, 1024, BLOCK=128)
    stop = threading.Event()
    hot, warm = [0], [0]

    def launch() -> None:
        while not stop.is_set():
            kernel[(1,)](X, X, X, 1024, BLOCK=128)
            hot[0] += 1

    def warm_up() -> None:
        while not stop.is_set():
            kernel.warmup(X, X, X, 1024, BLOCK=128, grid=(1,))
            warm[0] += 1

    threads = [threading.Thread(target=launch), threading.Thread(target=warm_up)]
    for thread in threads:
        thread.start()
    for n in range(12):
        tuned[(1,)](X, X, X, 2048 + 16 * n)
    stop.set()
    for thread in threads:
        thread.join()

    assert total_of(instrumented, "autotune_trials_total") == trials == 12 * 2 * 20
    assert total_of(instrumented, "warmups_total") == warm[0]
    assert total_of(instrumented, "launches_total") == 1 + hot[0] + 12


def test_launcher_calls_equal_launches_less_raised_less_empty_plus_trials(instrumented: Runtime) -> None:
    """The identity of the counts, over several threads, against the launcher's own count."""
    errors: list[Event] = []
    empty, ran = [0] * 4, CompileOnlyLauncher.launches
    targets = [fresh(kernels.add_kernel) for _ in range(4)]
    tuners = [
        triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])(target)
        for target in targets
    ]

    def work(i: int) -> None:
        kernel, tuned = targets[i], tuners[i]
        for j in range(50):
            kernel[(1,)](X, X, X, j, BLOCK=64)
            kernel[(0,)](X, X, X, j, BLOCK=64)
            empty[i] += 1
            if j % 10 == 0:
                tuned[(1,)](X, X, X, 16 * j + 16)
                with pytest.raises(ZeroDivisionError):
                    kernel[lambda meta: 1 // 0](X, X, X, j, BLOCK=64)
                with pytest.raises(TypeError):
                    kernel[(1,)](X)

    with instrumented.bus.subscribed(errors.append):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    raised = sum(isinstance(event, LaunchError) for event in errors)
    launches, trials = total_of(instrumented, "launches_total"), total_of(instrumented, "autotune_trials_total")
    assert raised == 4 * 5 * 2
    assert CompileOnlyLauncher.launches - ran == launches - raised - sum(empty) + trials


def test_gluon_and_other_subclasses_are_found_too(runtime: Runtime) -> None:
    class Special(triton.JITFunction):  # type: ignore[misc, unused-ignore]
        """Somebody's subclass, as Gluon's is one."""

    kernel = Special(kernels.add_kernel.fn)
    kernel[(1,)](X, X, X, 64, BLOCK=64)
    tritonprobe.instrument()
    kernel[(1,)](X, X, X, 64, BLOCK=64)

    assert samples_of(runtime, "launches_total") == {(NAME, "n<=64"): 1}


def test_looking_for_kernels_loads_no_lazy_module_and_asks_no_proxy(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                pytest.fail("the lazy module was asked")
            return super().__getattribute__(name)

    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("the proxy was asked")

    proxy = Proxy()
    monkeypatch.setitem(sys.modules, "somebodys_lazy_module", Lazy("somebodys_lazy_module"))
    monkeypatch.setitem(sys.modules, "no_module_at_all", 3)
    monkeypatch.setattr(kernels, "proxy", proxy, raising=False)
    tritonprobe.instrument()
