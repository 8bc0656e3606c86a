"""What programs in the wild do to Triton, and what we must not add to it: each case once broke, or lied."""

from __future__ import annotations

import copy
import gc
import os
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh, interrupted, samples_of, total_of
from tritonprobe import op, probe
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls

X = torch.empty(64)
NAME = "tests.adapter.kernels.add_kernel"
BLOCKS = [triton.Config({"BLOCK": b}) for b in (32, 64, 128)]


@triton.jit
def tuner_kernel(x, tuner, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tuner + n)


@triton.jit
def exception_kernel(x, Exception, BLOCK: tl.constexpr):  # noqa: A002
    tl.store(x + tl.arange(0, BLOCK), Exception)


def tuned(kernel: Any, **options: Any) -> Any:
    return triton.autotune(configs=BLOCKS, key=["n"], **options)(fresh(kernel))


def test_instrument_again_under_somebodys_wrapper_counts_once_and_warms_up(runtime: Runtime, add: Any) -> None:
    tritonprobe.instrument()
    ours = JITFunction.run

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    JITFunction.run = theirs
    try:
        tritonprobe.uninstrument()
        tritonprobe.instrument()
        add(X, X, X, 64)
        add.kernel.warmup(X, X, X, 64, BLOCK=32, grid=(1,))
        with pytest.raises(ZeroDivisionError):
            add.kernel[lambda meta: 1 // 0](X, X, X, 64, BLOCK=128)
    finally:
        JITFunction.run = ours

    assert total_of(runtime, "launches_total") == 2
    assert total_of(runtime, "warmups_total") == 1
    assert total_of(runtime, "launch_errors_total") == 1
    lookups = samples_of(runtime, "cache_lookups_total")
    assert sum(n for (_, _, tier), n in lookups.items() if tier == "compile") == 2


@pytest.mark.parametrize(
    "prune",
    [
        lambda configs, args, **kwargs: (c for c in configs),
        lambda configs, args, **kwargs: [*configs, triton.Config({"BLOCK": 16})],
    ],
)
def test_a_users_pruning_may_return_what_triton_takes(runtime: Runtime, prune: Any) -> None:
    """Up to Triton 3.7 that is any iterable; later ones refuse all but lists, and then do so with us as well."""

    def launch() -> None:
        tuned(kernels.add_kernel, prune_configs_by={"early_config_prune": prune})[(1,)](X, X, X, 64)

    try:
        launch()
    except TypeError as refused:
        tritonprobe.instrument()
        with pytest.raises(TypeError, match=re.escape(str(refused))):
            launch()
        return
    tritonprobe.instrument()
    with capture_cold_calls() as calls:
        launch()

    (call,) = calls
    assert call.tuning is not None
    assert call.tuning.pruned == 0
    assert total_of(runtime, "autotune_seconds_total") > 0


def test_a_tuner_may_have_a_local_of_any_name(instrumented: Runtime) -> None:
    class Mine(Autotuner):  # type: ignore[misc, unused-ignore]
        def prune_configs(self, kwargs: Any) -> Any:
            key = ["a list cannot be a key"]
            assert key
            return super().prune_configs(kwargs)

    jit = fresh(kernels.add_kernel)
    tuner = Mine(jit, jit.arg_names, BLOCKS, ["n"], None, None)
    with capture_cold_calls() as calls:
        tuner[(1,)](X, X, X, 64)
    assert calls[0].reasons[0].startswith("no autotune winner yet for (64, ")
    assert calls[0].tuning is not None
    assert calls[0].tuning.winner == str(tuner.best_config)


def test_a_kernels_argument_may_have_any_name(instrumented: Runtime) -> None:
    tuned(tuner_kernel)[(1,)](X, tuner=3, n=5)
    kernel = fresh(exception_kernel)
    for value in (3, 3, 64):
        kernel[(1,)](X, value, BLOCK=64)
    assert total_of(instrumented, "launches_total") == 4


def test_trials_on_a_thread_of_the_benchmarks_own_are_trials(instrumented: Runtime) -> None:
    with ThreadPoolExecutor(1) as pool:

        def do_bench(call: Any, quantiles: Any) -> list[float]:
            pool.submit(call).result()
            return [1.0, 1.0, 1.0]

        tritonprobe.ready()
        tuned(kernels.add_kernel, do_bench=do_bench)[(1,)](X, X, X, 64)

    assert total_of(instrumented, "autotune_trials_total") == 3
    assert total_of(instrumented, "launches_total") == 1
    assert total_of(instrumented, "cold_calls_after_ready_total") == 1, "the tuning is one incident"


def test_a_call_that_raised_before_it_looked_for_anything_is_no_cold_call(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    with capture_cold_calls() as calls, pytest.raises(KeyError):
        add(X, X, X, 64, no_such_option=1)
    assert calls == []
    assert total_of(instrumented, "launch_errors_total") == 1


def test_every_failed_tuning_is_a_launch_that_raised(instrumented: Runtime, add: Any) -> None:
    """Exceptions come and go at the same address; each counts."""

    def nothing(configs: Any, args: Any, **kwargs: Any) -> Any:
        raise ValueError("no")

    tuner = tuned(kernels.scale_kernel, prune_configs_by={"early_config_prune": nothing})
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            add.kernel[lambda meta: 1 // 0](X, X, X, 64, BLOCK=128)
        with pytest.raises(ValueError, match="no"):
            tuner[(1,)](X, 2.0, X, 64)
    assert total_of(instrumented, "launch_errors_total") == 40
    assert total_of(instrumented, "launches_total") == 40


def test_a_copy_of_a_kernel_counts_once_and_leaves_no_trace(instrumented: Runtime, add: Any) -> None:
    twin = copy.copy(add.kernel)
    probe(add.kernel)
    probe(twin)
    for _ in range(3):
        add(X, X, X, 64)
        twin[(1,)](X, X, X, 64, BLOCK=128)
    assert total_of(instrumented, "launches_total") == 6
    tritonprobe.uninstrument()
    assert add.kernel.device_caches[90][4].__code__.co_filename == "<string>"


def test_an_optional_integer_that_comes_later_becomes_a_dimension(instrumented: Runtime) -> None:
    kernel = fresh(kernels.optional_int_kernel)
    for k in (None, None, 20, 20, None):
        kernel[(1,)](X, 16, k, BLOCK=64)

    name = "tests.adapter.kernels.optional_int_kernel"
    # The third launch was counted before it was known to have one more dimension.
    assert samples_of(instrumented, "launches_total") == {(name, "n<=16"): 4, (name, "n<=16,k<=32"): 1}
    memory = {b: n for (_, b, t), n in samples_of(instrumented, "cache_lookups_total").items() if t == "memory"}
    assert sum(memory.values()) == 3


def test_another_spec_takes_the_place_of_the_first(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    probe(bucket={"n": "exact"})(add.kernel)
    add(X, X, X, 64)
    add(X, X, X, 65)
    assert samples_of(instrumented, "launches_total") == {(NAME, "n<=64"): 1, (NAME, "n=64"): 1, (NAME, "n=65"): 1}


def test_a_nested_launchs_exception_is_not_the_outer_ones(instrumented: Runtime, add: Any) -> None:
    inner = fresh(kernels.scale_kernel)

    def grid(meta: Any) -> tuple[int]:
        with pytest.raises(ZeroDivisionError):
            inner[lambda meta: 1 // 0](X, 2.0, X, 64, BLOCK=64)
        return (1,)

    with capture_cold_calls() as calls:
        add.kernel[grid](X, X, X, 64, BLOCK=128)
    assert [(call.kernel, call.error) for call in calls] == [(NAME, None)]


@pytest.mark.parametrize("kernel", ["dot", "broken"])
def test_an_op_that_falls_back_keeps_no_argument_alive(instrumented: Runtime, kernel: str) -> None:
    jit = fresh(kernels.dot_kernel if kernel == "dot" else kernels.broken_kernel)

    @op(fallback=lambda x: None, name="the.op")
    def run(x: torch.Tensor) -> None:
        if kernel == "dot":
            jit[(1,)](x, x, x, 256, SIZE=256)
        else:
            jit[(1,)](x, 3, BLOCK=64)

    gc.collect()
    gc.disable()
    try:
        tensor = torch.empty(256 * 256)
        alive = weakref.ref(tensor)
        run(tensor)
        del tensor
        assert alive() is None or kernel == "dot", "only Triton's own saved exception may hold a launch's arguments"
    finally:
        gc.enable()
    assert total_of(instrumented, "fallbacks_total") == 1


def test_an_op_disappears_in_a_compiled_graph(runtime: Runtime) -> None:
    @op(fallback=lambda x: x * 3, name="the.op")
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    compiled = torch.compile(lambda x: triple(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert total_of(runtime, "op_calls_total") == 0


def test_a_child_forked_from_a_cold_process_is_not_cold(instrumented: Runtime, add: Any) -> None:
    """Another thread compiles while this one forks: the child has no such thread, and no such call."""
    inside, go_on = threading.Event(), threading.Event()

    def grid(meta: Any) -> tuple[int]:
        inside.set()
        go_on.wait(30)
        return (1,)

    thread = threading.Thread(target=lambda: add.kernel[grid](X, X, X, 64, BLOCK=128))
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        cold = samples_of(instrumented, "cold_call_start_timestamp_seconds")
        fresh(kernels.scale_kernel)[(1,)](X, 2.0, X, 64, BLOCK=64)
        os._exit(0 if not cold and not instrumented.adapter._watch.any else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("tunes", [False, True], ids=["launch", "tuning"])
def test_wherever_a_cold_call_is_interrupted_the_next_one_is_as_if_nothing_had_been(
    instrumented: Runtime, tunes: bool
) -> None:
    tuner = tuned(kernels.add_kernel)
    kernel = tuner.fn
    watch, thread = instrumented.adapter._watch, instrumented.adapter.registry.thread

    def cold() -> None:
        kernel.device_caches.clear()
        tuner.cache.clear()
        if tunes:
            tuner[(1,)](X, X, X, 64)
        else:
            kernel[(1,)](X, X, X, 64, BLOCK=64)

    cold()
    event = 1
    while interrupted(cold, event, "_open", "close", "begin_slow", "end_slow", "bench"):
        assert (thread.trials, thread.config) == (0, None)
        with capture_cold_calls() as calls:
            cold()
        assert calls[-1].error is None
        assert (watch.any, watch.slow, instrumented.adapter.calls.current) == ([], [], None)
        event += 1
    assert event > 10
