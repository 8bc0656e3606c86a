"""What an op does with a call before it comes to a launch: nothing to do, not for this kernel, or no device at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tritonprobe_kernels as tk
from tests.kernels.counts import fallbacks, paths

T = torch.ones
DOUBLE, HALF = torch.float64, torch.float16
ONE = torch.ones(1, dtype=torch.int64)
BOUNDS = torch.tensor([0, 3])


def cache(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*(shape or (2, 4, 2, 16)), **options)


EMPTY: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...], tuple[int, ...]]] = [
    (tk.add, (T(0), T(0)), (0,)),
    (tk.add, (T(3, 0, 2), T(3, 0, 2)), (3, 0, 2)),
    (tk.softmax, (T(0, 8),), (0, 8)),
    (tk.softmax, (T(8, 0),), (8, 0)),
    (tk.rmsnorm, (T(0, 8), T(8)), (0, 8)),
    (tk.swiglu, (T(0, 8),), (0, 4)),
    (tk.swiglu, (T(0, 8), T(0, 8)), (0, 8)),
    (tk.rope, (T(0, 2, 16), torch.ones(0, dtype=torch.int32), *tk.rope_tables(4, 16)), (0, 2, 16)),
    (tk.matmul, (T(0, 8), T(8, 4)), (0, 4)),
    (tk.matmul, (T(8, 4), T(4, 0)), (8, 0)),
    (tk.attention_prefill, (T(0, 4, 16), T(0, 2, 16), T(0, 2, 16), torch.tensor([0]), 0), (0, 4, 16)),
    (tk.attention_prefill, (T(0, 4, 16), T(0, 2, 16), T(0, 2, 16), torch.tensor([0, 0]), 0), (0, 4, 16)),
    (tk.attention_decode, (T(0, 4, 16), cache(), cache(), ONE[:0], ONE[:0]), (0, 4, 16)),
]


@pytest.mark.parametrize(("op", "args", "shape"), EMPTY, ids=lambda value: getattr(value, "__name__", None))
def test_empty_inputs_give_an_empty_result_and_launch_nothing(
    op: Callable[..., torch.Tensor], args: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    before = paths(op.__name__)
    out = op(*args)  # there is no device here that could be launched on
    assert out.shape == shape
    assert paths(op.__name__) - before == {"triton": 1}


REFUSED: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...], dict[str, Any], str]] = [
    (tk.add, (T(3, dtype=DOUBLE), T(3, dtype=DOUBLE)), {}, "unsupported_dtype"),
    (tk.add, (T(3), T(3, dtype=HALF)), {}, "unsupported_dtype"),
    (tk.add, (T(3, dtype=torch.int32), T(3, dtype=torch.int32)), {}, "unsupported_dtype"),
    (tk.add, (T(2, 3), T(3)), {}, "unsupported_shape"),
    (tk.softmax, (T(3, dtype=DOUBLE),), {}, "unsupported_dtype"),
    (tk.softmax, (T(1, 70_000),), {}, "unsupported_shape"),
    (tk.softmax, (T(()),), {}, "unsupported_shape"),
    (tk.rmsnorm, (T(2, 8), T(8, dtype=HALF)), {}, "unsupported_dtype"),
    (tk.rmsnorm, (T(2, 8), T(1)), {"eps": 1e-5}, "unsupported_shape"),
    (tk.rmsnorm, (T(1, 70_000), T(70_000)), {}, "unsupported_shape"),
    (tk.swiglu, (T(2, 8), T(2, 8, dtype=HALF)), {}, "unsupported_dtype"),
    (tk.swiglu, (T(2, 8), T(1, 8)), {}, "unsupported_shape"),
    (tk.rope, (T(3, 2, 16, dtype=DOUBLE), BOUNDS[[0, 0, 0]], *tk.rope_tables(4, 16)), {}, "unsupported_dtype"),
    (tk.rope, (T(3, 2, 16), BOUNDS[[0, 0, 0]].short(), *tk.rope_tables(4, 16)), {}, "unsupported_dtype"),
    (tk.rope, (T(3, 2, 1024), BOUNDS[[0, 0, 0]], *tk.rope_tables(4, 1024)), {}, "unsupported_shape"),
    (tk.matmul, (T(2, 3), T(3, 4)), {"bias": T(4, dtype=HALF)}, "unsupported_dtype"),
    (tk.matmul, (T(2, 3), T(3, 4)), {"out_dtype": DOUBLE}, "unsupported_dtype"),
    (tk.matmul, (T(5, 2, 3), T(3, 4)), {}, "unsupported_shape"),
    (tk.matmul, (T(2, 3), T(3, 4)), {"bias": T(1), "activation": "silu"}, "unsupported_shape"),
    (tk.attention_prefill, (T(3, 4, 16), T(3, 2, 16), T(3, 2, 16, dtype=HALF), BOUNDS, 3), {}, "unsupported_dtype"),
    (tk.attention_prefill, (T(3, 4, 24), T(3, 2, 24), T(3, 2, 24), BOUNDS, 3), {}, "unsupported_shape"),
    (tk.attention_prefill, (T(3, 4, 512), T(3, 2, 512), T(3, 2, 512), BOUNDS, 3), {}, "unsupported_shape"),
    (tk.attention_prefill, (T(3, 4, 8), T(3, 2, 8), T(3, 2, 8), BOUNDS, 3), {"scale": 1.0}, "unsupported_shape"),
    (tk.attention_decode, (T(1, 4, 16), cache(), cache(), ONE.short(), ONE), {}, "unsupported_dtype"),
    (tk.attention_decode, (T(1, 4, 48), cache(2, 4, 2, 48), cache(2, 4, 2, 48), ONE, ONE), {}, "unsupported_shape"),
]


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "reason"), REFUSED, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_call_the_kernel_cannot_take_gets_the_references_answer_and_its_reason_counted(
    op: Callable[..., torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    before, refused_before = paths(op.__name__), fallbacks(op.__name__)
    out = op(*args, **kwargs)
    assert torch.equal(out, getattr(tk, f"{op.__name__}_reference")(*args, **kwargs))
    assert fallbacks(op.__name__) - refused_before == {reason: 1}
    assert paths(op.__name__) - before == {"fallback": 1}


def test_a_wrong_call_raises_what_torch_raises() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        tk.add(T(3), T(4))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        tk.matmul(T(2, 3), T(4, 5))


def test_an_unknown_activation_is_named_with_those_there_are() -> None:
    message = "activation='tanh': expected one of none, relu, gelu, silu"
    for function in (tk.matmul, tk.matmul_reference):
        with pytest.raises(ValueError, match=message):
            function(T(2, 3), T(3, 4), activation="tanh")  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a CUDA device")
def test_without_any_device_tritons_own_error_comes_through() -> None:
    before = fallbacks("add")
    with pytest.raises(RuntimeError, match="0 active drivers"):
        tk.add(T(3), T(3))
    assert fallbacks("add") == before
