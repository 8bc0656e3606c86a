"""Ops: which path answered, why, and what a caller gets. On the compile-only device the path is Triton's.

Each test runs with calls in C and in Python. An op's first call begins in Python either way, so that most tests call
twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources

from tests.adapter import kernels
from tests.adapter.conftest import cache, fresh, interrupted, runtime, samples_of, total_of  # noqa: F401  # fixtures
from tritonprobe import incidents, native, op, pow2
from tritonprobe.adapter import op_call
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.shapes.buckets import UpTo

NAME = "the.op"
RUNBOOK = Path(__file__).parent.parent / "docs" / "runbooks" / "fallbacks.md"
Op = Any


def make(kernel: Any, **options: Any) -> tuple[Op, list[str]]:
    """An op over one launch of `kernel`, and a log of which path ran."""
    log: list[str] = []

    def reference(x: torch.Tensor, block: int = 64) -> torch.Tensor:
        log.append("fallback")
        return x + x

    @op(fallback=reference, name=NAME, **options)
    def double(x: torch.Tensor, block: int = 64) -> torch.Tensor:
        """Twice x."""
        log.append("triton")
        out = torch.empty_like(x)
        kernel[(1,)](x, x, out, x.numel(), BLOCK=block)
        return out

    return double, log


@pytest.fixture(
    params=[
        pytest.param("c", marks=pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")),
        "python",
    ],
    autouse=True,
)
def calls_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(op_call, "_module", lambda: None)
    return str(request.param)


class Incomparable:
    """As an array of several is: asked whether it equals something, it has no one answer."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")


class Five(int):
    def __str__(self) -> str:
        raise AssertionError("it was asked")


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError("it was asked")


X = torch.arange(64.0)


def logging(log: list[str], what: str) -> Any:
    """A fallback that gives its argument back."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        log.append(what)
        return x

    return reference


def test_the_triton_path_compiles_and_the_value_is_the_references(runtime: Runtime) -> None:  # noqa: F811
    double, log = make(fresh(kernels.add_kernel), bucket=lambda x, block=64: {"n": pow2(x.numel())})

    for _ in range(3):
        assert torch.equal(double(X), X + X)
    assert log == ["triton", "fallback"] * 3
    assert samples_of(runtime, "op_calls_total") == {(NAME, "n<=64", "triton"): 3}
    assert samples_of(runtime, "fallbacks_total") == {}


def test_an_op_keeps_its_name_and_its_docstring() -> None:
    double, _ = make(kernels.add_kernel)
    assert (double.__name__, double.__doc__) == ("double", "Twice x.")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (False, "unsupported_shape"),
        ("unsupported_dtype", "unsupported_dtype"),
        ("unsupported_layout", "unsupported_layout"),
        (np.False_, "unsupported_shape"),
        ("no such reason", "supports_error"),
        (None, "supports_error"),
        (Incomparable(), "supports_error"),
        (torch.tensor([True, False]), "supports_error"),
    ],
)
def test_supports_sends_a_call_to_the_fallback_with_its_reason(
    runtime: Runtime,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    verdict: Any,
    reason: str,
) -> None:
    faults: list[str] = []
    monkeypatch.setattr(runtime, "fault", faults.append)
    double, log = make(fresh(kernels.add_kernel), supports=lambda x, block=64: verdict)

    for _ in range(2):
        assert torch.equal(double(X), X + X)
    assert log == ["fallback"] * 2
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "fallback"): 2}
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "all", reason): 2}
    assert faults == ["supports"] * (2 if reason == "supports_error" else 0)


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (
            "unsupported_shpe",
            "supports returned 'unsupported_shpe'; expected True, False, or one of unsupported_",
        ),
        (
            torch.tensor([True, False]),
            "supports returned a Tensor; expected True, False, or one of unsupported_",
        ),
    ],
)
def test_what_is_no_reason_is_a_fault_that_says_which_there_are(
    runtime: Runtime,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    verdict: Any,
    says: str,
) -> None:
    faults: list[tuple[str, str]] = []
    monkeypatch.setattr(runtime, "fault", lambda part: faults.append((part, str(sys.exc_info()[1]))))
    double, _ = make(fresh(kernels.add_kernel), supports=lambda x, block=64: verdict)
    for _ in range(2):
        double(X)
    assert [(part, said.startswith(says)) for part, said in faults] == [("supports", True)] * 2


@pytest.mark.parametrize("verdict", [True, np.True_])
def test_what_is_supported_takes_the_triton_path(runtime: Runtime, verdict: Any) -> None:  # noqa: F811
    double, _ = make(fresh(kernels.add_kernel), supports=lambda x, block=64: verdict)
    for _ in range(2):
        double(X)
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 2}


def test_a_supports_that_raises_counts_as_such(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    faults: list[str] = []
    monkeypatch.setattr(runtime, "fault", faults.append)
    double, log = make(fresh(kernels.add_kernel), supports=lambda x, block=64: 1 // 0)

    for _ in range(2):
        assert torch.equal(double(X), X + X)
    assert log == ["fallback"] * 2
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "all", "supports_error"): 2}
    assert faults == ["supports"] * 2


def test_a_first_kernel_that_does_not_compile_falls_back(runtime: Runtime) -> None:  # noqa: F811
    broken = fresh(kernels.broken_kernel)
    log: list[str] = []

    @op(fallback=logging(log, "fallback"), name=NAME)
    def fill(x: torch.Tensor) -> torch.Tensor:
        broken[(1,)](x, 3, BLOCK=64)
        return x

    for _ in range(2):
        assert torch.equal(fill(X), X)
    assert log == ["fallback"] * 2
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "fallback"): 2}
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "all", "compile_error"): 2}
    assert runtime.adapter.launches._thread.error is None


def test_the_first_failure_of_each_op_and_reason_is_in_the_log_with_its_traceback(
    runtime: Runtime,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fallback answers for it, so nobody else hears of the exception."""
    broken = fresh(kernels.broken_kernel)
    configs = [triton.Config({"BLOCK": size}) for size in (64, 128)]
    pruned = triton.autotune(configs, key=["n"], prune_configs_by={"early_config_prune": lambda *args, **kwargs: []})
    unruly = pruned(fresh(kernels.broken_kernel))

    def made(name: str) -> Op:
        @op(fallback=lambda x: x, name=name)
        def either(x: torch.Tensor) -> torch.Tensor:
            if x.numel() == 64:
                broken[(1,)](x, 3, BLOCK=64)
            unruly[(1,)](x, 3)
            return x

        return either

    one, two = made("one"), made("two")
    for _ in range(3):
        one(X)
        one(X[1:])
        two(X)
        made("two")(X)  # an op that is made anew, as in a factory, says nothing new
    said = [record for record in caplog.records if "failed" in record.message]
    assert [record.message.partition(",")[0] for record in said] == [
        "tritonprobe: op one failed (compile_error)",
        "tritonprobe: op one failed (autotune_failed)",
        "tritonprobe: op two failed (compile_error)",
    ]
    assert "undefined_name is not defined" in caplog.text
    assert "its fallback answered; later ones of this reason are only counted\nTraceback (most recent" in caplog.text
    assert "in either\n" in caplog.text  # the traceback begins in the program's own function
    assert samples_of(runtime, "fallbacks_total")[("one", "all", "compile_error")] == 3


@pytest.mark.parametrize(
    ("kernel", "keep", "reason", "meaning"),
    [
        (kernels.broken_kernel, [], "autotune_failed", "pruning left its autotuner no configuration to try"),
        (kernels.broken_kernel, [0, 1], "compile_error", "or no configuration of its autotuner did"),
        (kernels.asserting_kernel, [0, 1], "compile_error", "or no configuration of its autotuner did"),
    ],
)
def test_an_autotuner_without_a_configuration_that_works_fails_as_the_runbook_says(
    runtime: Runtime,  # noqa: F811
    kernel: Any,
    keep: list[int],
    reason: str,
    meaning: str,
) -> None:
    """Triton takes the first one that fails an assertion for the winner: later calls do not tune, and fail alike."""
    configs = [triton.Config({"BLOCK": size}) for size in (64, 128)]
    prune = {"early_config_prune": lambda configs, *args, **kwargs: [configs[place] for place in keep]}
    tuned = triton.autotune(configs, key=["n"], prune_configs_by=prune)(fresh(kernel))

    @op(fallback=lambda x: x, name=NAME)
    def fill(x: torch.Tensor) -> torch.Tensor:
        tuned[(1,)](x, 3)
        return x

    for _ in range(3):
        fill(X)
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "all", reason): 3}
    rows = [line for line in RUNBOOK.read_text().splitlines() if line.startswith(f"| `{reason}`")]
    assert len(rows) == 1
    assert meaning in rows[0]


def test_failures_of_ops_that_are_logged_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = incidents.OpFailures()
    for n in range(incidents.LINES + 5):
        failures.happened(f"op{n}", "compile_error", ValueError())
    assert len(caplog.records) == incidents.LINES == len(failures._said)


def test_a_log_that_raises_is_a_fault_and_the_fallback_answers_all_the_same(
    runtime: Runtime,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: list[str] = []
    monkeypatch.setattr(runtime, "fault", faults.append)
    monkeypatch.setattr(incidents.log, "handle", lambda record: 1 // 0)
    broken = fresh(kernels.broken_kernel)

    @op(fallback=torch.neg)
    def negative(x: torch.Tensor) -> torch.Tensor:
        broken[(1,)](x, 3, BLOCK=64)
        return x

    assert torch.equal(negative(X), -X)
    assert faults == ["op"]


def test_a_first_kernel_out_of_resources_falls_back(runtime: Runtime) -> None:  # noqa: F811
    dot, big = fresh(kernels.dot_kernel), torch.empty(256 * 256)

    @op(fallback=lambda x: x, name=NAME)
    def multiply(x: torch.Tensor) -> torch.Tensor:
        dot[(1,)](x, x, x, 256, SIZE=256)
        return x

    for _ in range(2):
        multiply(big)
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "all", "out_of_resources"): 2}


def test_after_a_launch_an_error_reaches_the_caller(runtime: Runtime) -> None:  # noqa: F811
    """In-place work may be half done: doing it again would be wrong."""
    add, broken = fresh(kernels.add_kernel), fresh(kernels.broken_kernel)

    came_back: list[int] = []
    count = runtime.adapter.launches.ends.came_back

    @op(fallback=lambda x: pytest.fail(f"the fallback ran; launches that came back: {came_back}, {count()}"), name=NAME)
    def twice(x: torch.Tensor) -> torch.Tensor:
        came_back.append(count())
        add[(1,)](x, x, x, 64, BLOCK=64)
        came_back.append(count())
        broken[(1,)](x, 3, BLOCK=64)
        pytest.fail("a kernel that does not compile was launched")

    for _ in range(2):  # the first kernel is hot the second time
        with pytest.raises(triton.CompilationError):
            twice(X)
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 2}
    assert samples_of(runtime, "fallbacks_total") == {}


def test_after_a_launch_an_error_reaches_the_caller_with_another_runtime_there_too(runtime: Runtime) -> None:  # noqa: F811
    """What a thread counts is that of all runtimes of the process; a launch that raised is taken off it once."""
    runtime.watch()
    add, full = fresh(kernels.add_kernel), fresh(kernels.scale_kernel)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OutOfResources(2, 1, "shared memory")

    @op(fallback=lambda x: x, name=NAME)
    def twice(x: torch.Tensor) -> torch.Tensor:
        add[(1,)](x, x, x, 64, BLOCK=64)
        full[(1,)](x, 2.0, x, 64, BLOCK=64)
        return x

    twice(X)
    full.pre_run_hooks.append(refuse)
    another = Runtime(Settings())
    another.watch()
    try:
        for _ in range(2):
            with pytest.raises(OutOfResources):
                twice(X)
    finally:
        another.unwatch()
    assert samples_of(runtime, "fallbacks_total") == {}


def test_launches_before_an_inner_op_count_for_the_outer_one(runtime: Runtime) -> None:  # noqa: F811
    add, broken = fresh(kernels.add_kernel), fresh(kernels.broken_kernel)
    ran: list[str] = []

    @op(fallback=logging(ran, "inner"), name="inner")
    def inner(x: torch.Tensor) -> torch.Tensor:
        broken[(1,)](x, 3, BLOCK=64)
        return x

    @op(fallback=logging(ran, "outer"), name="outer")
    def outer(x: torch.Tensor) -> torch.Tensor:
        add[(1,)](x, x, x, 64, BLOCK=64)
        return inner(x)

    for _ in range(2):
        outer(X)
    assert ran == ["inner", "outer"] * 2  # the outer one for its value on this device, not as a fallback
    assert set(samples_of(runtime, "fallbacks_total")) == {("inner", "all", "compile_error")}


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("x"), RuntimeError("cuda")])
def test_an_error_of_the_functions_own_reaches_the_caller(runtime: Runtime, error: Exception) -> None:  # noqa: F811
    @op(fallback=lambda: pytest.fail("the fallback ran"), name=NAME)
    def raises() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            raises()
        assert caught.value is error
        assert caught.traceback[-1].name == "raises"
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 2}


@pytest.mark.parametrize("raises", [False, True])
def test_wherever_a_call_is_interrupted_the_op_has_ended(runtime: Runtime, raises: bool) -> None:  # noqa: F811
    """The first call of an op, as well as the next."""
    runtime.watch()
    watch, ends = runtime.adapter._watch, runtime.adapter.launches.ends
    calls: list[Any] = []

    def make_op() -> Any:
        @op(fallback=lambda n: n, supports=lambda n: True, bucket=lambda n: {"n": n}, name=NAME)
        def same(n: int) -> int:
            if raises:
                raise ValueError(n)
            return n

        return same

    def call() -> None:
        with contextlib.suppress(ValueError):
            calls[0](1)

    ours = ("call", "_count_in", "__init__", "tell", "where", "_name_of", "same", "took_triton", "failed")
    for begins in (True, False):
        event = 1
        while True:
            calls[:] = [make_op()]
            if not begins:
                call()
            if not interrupted(call, event, *ours):
                break
            assert (watch.any, ends.ops()) == ([], 0)
            call()
            assert (watch.any, ends.ops()) == ([], 0)
            event += 1
        assert event > (3 if begins else 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_program_goes_through_an_op_uncounted(runtime: Runtime, error: BaseException) -> None:  # noqa: F811
    @op(fallback=lambda stop: None, name=NAME)
    def stops(stop: bool) -> None:
        if stop:
            raise error

    @op(fallback=lambda stop: None, supports=lambda stop: stops(stop) is None, name="asks")
    def asks(stop: bool) -> None: ...

    for call in (stops, asks):
        call(False)
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                call(True)
            assert caught.value is error
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 2, ("asks", "all", "triton"): 1}
    assert runtime.adapter.launches.ends.ops() == 0
    assert runtime.adapter._watch.any == []


def test_a_resource_error_that_no_launch_raised_reaches_the_caller(runtime: Runtime) -> None:  # noqa: F811
    error = triton.runtime.errors.OutOfResources(1, 0, "patience")

    @op(fallback=lambda: pytest.fail("the fallback ran"), name=NAME)
    def raises() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(triton.runtime.errors.OutOfResources):
            raises()
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 2}


def test_a_bucket_that_raises_or_is_odd_is_all(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    faults: list[str] = []
    monkeypatch.setattr(runtime, "fault", faults.append)
    for bucket in (lambda x, block=64: 1 // 0, lambda x, block=64: x):
        double, _ = make(fresh(kernels.add_kernel), bucket=bucket)
        for _ in range(2):
            double(X)
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 4}
    assert faults == ["bucket"] * 4


@pytest.mark.parametrize(
    ("calls", "buckets"),
    [
        ([True, 1, 1.0, "1"], {"block=True": 1, "block=1": 2, "block=1.0": 1}),
        ([1, True], {"block=1": 1, "block=True": 1}),
        ([0.0, -0.0, 0, False], {"block=0.0": 2, "block=0": 1, "block=False": 1}),
        ([-0.0, 0.0], {"block=0.0": 2}),
        ([Five(5), 5, UpTo(5)], {"block=5": 2, "block<=5": 1}),
        ([Word("a"), "a", None], {"block=a": 2, "block=None": 1}),
        ([float("nan"), float("nan")], {"block=nan": 2}),
    ],
)
def test_a_values_bucket_does_not_depend_on_what_came_before_it(
    runtime: Runtime,  # noqa: F811
    calls: list[Any],
    buckets: dict[str, int],
) -> None:
    """Equal values of several types are several."""

    @op(fallback=lambda block: 0, bucket=lambda block: {"block": block}, name=NAME)
    def of(block: Any) -> int:
        return 1

    for call in calls:
        assert of(call) == 0
    assert {labels[1]: n for labels, n in samples_of(runtime, "op_calls_total").items()} == buckets


@pytest.mark.parametrize("names", [(True, 1), (1, True)])
def test_dimensions_of_equal_names_are_two(runtime: Runtime, names: tuple[int, ...]) -> None:  # noqa: F811
    @op(fallback=lambda name: 0, bucket=lambda name: {name: 8}, name=NAME)
    def of(name: Any) -> int:
        return 1

    for name in (*names, *names):
        of(name)
    assert {labels[1]: n for labels, n in samples_of(runtime, "op_calls_total").items()} == {"True=8": 2, "1=8": 2}


def test_the_fallback_must_be_callable() -> None:
    with pytest.raises(TypeError, match=r"op\(fallback=\.\.\.\) must be callable, not str"):
        op(fallback="torch.matmul")  # type: ignore[arg-type]


def test_an_op_without_its_parentheses_is_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"write @op\(fallback=\.\.\.\) above the function"):

        @op  # type: ignore[arg-type]
        def double(x: torch.Tensor) -> torch.Tensor:
            return x + x


@pytest.mark.parametrize(
    "decorate",
    [
        lambda kernel: kernel,
        triton.heuristics({"BLOCK": lambda args: 64}),
        triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"]),
    ],
)
def test_an_op_over_a_kernel_is_told_what_to_write(decorate: Any) -> None:
    kernel = decorate(fresh(kernels.add_kernel))
    with pytest.raises(TypeError, match=r"add_kernel is a Triton kernel: put it above the function that launches") as e:
        op(fallback=torch.add)(kernel)
    assert "@probe" in str(e.value)


def test_ops_of_several_threads_do_not_see_each_others_launches(runtime: Runtime) -> None:  # noqa: F811
    """One thread launches all the time; another's op whose first kernel fails still falls back."""
    import threading

    import tritonprobe

    tritonprobe.instrument()
    busy = fresh(kernels.add_kernel)
    busy[(1,)](X, X, X, 64, BLOCK=64)
    stop = threading.Event()

    def launch() -> None:
        while not stop.is_set():
            busy[(1,)](X, X, X, 64, BLOCK=64)

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        for _ in range(5):
            broken = fresh(kernels.broken_kernel)

            @op(fallback=lambda x: x, name=NAME)
            def fill(x: torch.Tensor, broken: Any = broken) -> torch.Tensor:
                broken[(1,)](x, 3, BLOCK=64)
                return x

            fill(X)
    finally:
        stop.set()
        thread.join()
    assert total_of(runtime, "fallbacks_total") == 5


def test_another_runtime_of_the_process_holds_nothing_of_an_op(runtime: Runtime) -> None:  # noqa: F811
    """Nobody would let go of the error there, its traceback and the tensors in it; nor end the op in a forked child."""
    runtime.watch()
    another = Runtime(Settings())
    another.watch()
    kernel = fresh(kernels.add_kernel)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OutOfResources(2, 1, "shared memory")

    kernel.pre_run_hooks.append(refuse)

    @op(fallback=lambda x: "fallback", name=NAME)
    def launched(x: torch.Tensor) -> object:
        if (child := os.fork()) == 0:
            left = (len(runtime.adapter._watch.any), len(another.adapter._watch.any))
            os._exit(0 if left == (1, 0) else 1)
        assert os.waitpid(child, 0)[1] == 0
        kernel[(1,)](x, x, x, x.numel(), BLOCK=64)
        return x

    try:
        assert launched(X) == "fallback"
        assert another.adapter.launches._thread.error is None
    finally:
        another.unwatch()
