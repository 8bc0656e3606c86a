"""Why a call was cold: the argument, and the classes it went between. Real Triton decides what is a new variant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError

from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls

X = torch.empty(64)
UNALIGNED = X[1:]
HALF, BRAIN = X.half(), X.bfloat16()

Launch = Callable[..., Any]


def reasons(call: Callable[[], Any]) -> tuple[str, ...]:
    """Why `call` was cold; nothing if it was hot."""
    with capture_cold_calls() as calls:
        call()
    return tuple(reason for cold in calls for reason in cold.reasons)


def test_an_integer_changes_its_class(instrumented: Runtime, add: Launch) -> None:
    """n = 1, 3, 5, 16, 32, 1: three compiles and three hits."""
    assert [reasons(partial(add, X, X, X, n)) for n in (1, 3, 5, 16, 32, 1)] == [
        ("new kernel",),
        ("n: ==1 -> other",),
        (),
        ("n: other -> %16",),
        (),
        (),
    ]
    assert samples_of(instrumented, "recompiles_total") == {("tests.adapter.kernels.add_kernel", "n"): 2}


def test_an_integer_whose_type_is_annotated_has_a_class_for_1_too(instrumented: Runtime) -> None:
    """Triton keeps such a 1 an argument, yet compiles anew for it: the two binaries are the same."""
    kernel = fresh(kernels.annotated_integers_kernel)

    def launch(n: int, m: int) -> None:
        kernel[(1,)](X, n, m, BLOCK=64)

    assert [reasons(partial(launch, n, m)) for n, m in ((1, 3), (3, 3), (16, 3), (3, 1), (1, 1), (5, 3))] == [
        ("new kernel",),
        ("n: ==1 -> other",),
        ("n: other -> %16",),
        ("m: other -> ==1",),
        ("n: other -> ==1",),
        (),
    ]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ((X, X, X, 3), (UNALIGNED, X, X, 3), ("x: %16 -> unaligned",)),
        ((UNALIGNED, X, X, 3), (X, X, X, 3), ("x: unaligned -> %16",)),
        ((HALF, X, X, 3), (BRAIN, X, X, 3), ("x: fp16 -> bf16",)),
        ((X, X, X, 16), (X, X, X, 1), ("n: %16 -> ==1",)),
        ((X, X, X, 16), (X, X, X, 1 << 33), ("n: i32 -> i64",)),
    ],
)
def test_one_argument_changes(
    instrumented: Runtime, add: Launch, before: tuple[Any, ...], after: tuple[Any, ...], reason: tuple[str, ...]
) -> None:
    add(*before)
    assert reasons(lambda: add(*after)) == reason


def test_a_constexpr_changes(instrumented: Runtime, add: Launch) -> None:
    add(X, X, X, 3, BLOCK=64)
    assert reasons(lambda: add(X, X, X, 3, BLOCK=128)) == ("constexpr BLOCK: 64 -> 128",)


def test_an_option_changes_and_its_default_spelt_out_is_the_same_variant(instrumented: Runtime, add: Launch) -> None:
    add(X, X, X, 3)
    assert reasons(lambda: add(X, X, X, 3, num_warps=8)) == ("option num_warps: 4 -> 8",)
    assert reasons(lambda: add(X, X, X, 3, num_warps=4)) == ("same variant, other in-memory key",)
    assert total_of(instrumented, "recompiles_total") == 1


def test_a_call_whose_compile_raised_before_says_so_each_time(instrumented: Runtime) -> None:
    kernel = fresh(kernels.strict_kernel)

    def launch(wanted: int) -> tuple[str | None, tuple[str, ...]]:
        with capture_cold_calls() as calls, contextlib.suppress(CompilationError):
            kernel[(1,)](X, 3, BLOCK=64, WANTED=wanted)
        (call,) = calls
        return call.error, call.reasons

    failed = "CompileTimeAssertionFailure"
    assert [launch(500) for _ in range(3)] == [
        (failed, ("new kernel",)),
        (failed, ("same variant, which raised before",)),
        (failed, ("same variant, which raised before",)),
    ]
    assert launch(5) == (None, ("new kernel",)), "nothing was made of it before"
    assert launch(700) == (failed, ("constexpr WANTED: 5 -> 700",))
    assert launch(700) == (failed, ("same variant, which raised before",))


def test_a_float_is_classed_by_type_alone(instrumented: Runtime) -> None:
    kernel = fresh(kernels.scale_kernel)
    assert reasons(lambda: kernel[(1,)](X, 2.0, X, 64, BLOCK=64)) == ("new kernel",)
    assert reasons(lambda: kernel[(1,)](X, 3.5, X, 64, BLOCK=64)) == ()
    assert reasons(lambda: kernel[(1,)](X, 16, X, 64, BLOCK=64)) == ("factor: fp32 -> i32 %16",)


def test_none_is_a_class(instrumented: Runtime) -> None:
    kernel = fresh(kernels.optional_kernel)
    kernel[(1,)](X, X, X, BLOCK=64)
    assert reasons(lambda: kernel[(1,)](X, None, X, BLOCK=64)) == ("bias: *fp32 %16 -> None",)


def test_the_elements_of_a_tuple_have_classes(instrumented: Runtime) -> None:
    kernel = fresh(kernels.tuple_kernel)
    kernel[(1,)](X, (3, 5), 7, BLOCK=64)
    assert reasons(lambda: kernel[(1,)](X, (3, 6), 7, BLOCK=64)) == ()
    assert reasons(lambda: kernel[(1,)](X, (3, 1), 7, BLOCK=64)) == ("shape[1]: other -> ==1",)


def test_the_nearest_variant_is_compared_with(instrumented: Runtime, add: Launch) -> None:
    add(X, X, X, 3)
    add(HALF, HALF, HALF, 16)
    assert reasons(lambda: add(HALF, HALF, HALF, 1)) == ("n: %16 -> ==1",)
    assert reasons(lambda: add(X, X, X, 1)) == ("n: other -> ==1",)
