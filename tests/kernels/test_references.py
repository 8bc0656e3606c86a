"""The references are what the kernels are judged by, so they are judged here, by the formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch

import tritonprobe_kernels as tk
from tests.kernels.cases import relative_error

ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def randn(draw: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=draw).to(dtype)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query over some keys, as the formula has it."""
    weights = torch.tensor([math.exp(scale * float(q.double() @ k.double())) for k in keys], dtype=torch.float64)
    return (weights / weights.sum()) @ values.double()


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_rows(draw: torch.Generator, dtype: torch.dtype) -> None:
    x, y = randn(draw, 4, 6, dtype=dtype), randn(draw, 4, 6, dtype=dtype)
    weight = randn(draw, 6, dtype=dtype)
    exponentials = x.double().exp()
    rms = (x.double().pow(2).sum(-1, keepdim=True) / 6 + 1e-6).sqrt()
    silu = x.double() / (1 + (-x.double()).exp())
    for out, expected in (
        (tk.add_reference(x, y), x.double() + y.double()),
        (tk.softmax_reference(x), exponentials / exponentials.sum(-1, keepdim=True)),
        (tk.rmsnorm_reference(x, weight), x.double() / rms * weight.double()),
        (tk.swiglu_reference(x, y), silu * y.double()),
        (tk.swiglu_reference(torch.cat((x, y), dim=-1)), silu * y.double()),
    ):
        assert out.dtype == dtype
        assert relative_error(out, expected) < ROUNDING[dtype]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_matmul(draw: torch.Generator, activation: str) -> None:
    a, b, bias = randn(draw, 3, 5), randn(draw, 5, 4), randn(draw, 4)
    expected = torch.empty(3, 4, dtype=torch.float64)
    for row in range(3):
        for column in range(4):
            x = 0.5 * sum(float(a[row, k]) * float(b[k, column]) for k in range(5)) + float(bias[column])
            expected[row, column] = {
                "none": x,
                "relu": max(x, 0.0),
                "gelu": 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
                "silu": x / (1 + math.exp(-x)),
            }[activation]
    out = tk.matmul_reference(a, b, bias=bias, activation=activation, scale=0.5)  # type: ignore[arg-type]
    assert relative_error(out, expected) < 1e-6
    half = tk.matmul_reference(a.half(), b.half(), out_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


def test_rope_turns_each_pair_as_a_complex_number(draw: torch.Generator) -> None:
    x = randn(draw, 3, 2, 8)
    positions = [0, 5, 90_000]
    cos, sin = tk.rope_tables(100_000, 8, theta=500.0)
    out = tk.rope_reference(x, torch.tensor(positions), cos, sin)
    for token, position in enumerate(positions):
        for i in range(4):
            turn = complex(math.cos(position * 500.0 ** (-i / 4)), math.sin(position * 500.0 ** (-i / 4)))
            for head in range(2):
                turned = complex(x[token, head, i], x[token, head, i + 4]) * turn
                got = complex(out[token, head, i], out[token, head, i + 4])
                assert abs(got - turned) < 1e-5
    assert torch.equal(out[0], x[0])  # position 0 turns nothing


def test_prefill_sees_the_past_of_its_own_sequence_only(draw: torch.Generator) -> None:
    q, k, v = randn(draw, 6, 4, 16), randn(draw, 6, 2, 16), randn(draw, 6, 2, 16)
    bounds = [0, 2, 2, 6]
    out = tk.attention_prefill_reference(q, k, v, torch.tensor(bounds), 4)
    for start, end in ((0, 2), (2, 6)):
        for token in range(start, end):
            for head in range(4):
                past = slice(start, token + 1)
                expected = attend(q[token, head], k[past, head // 2], v[past, head // 2], scale=0.25)
                assert relative_error(out[token, head], expected) < 1e-5


def test_decode_sees_its_own_slot_up_to_its_length(draw: torch.Generator) -> None:
    q = randn(draw, 3, 4, 16)
    k, v = randn(draw, 5, 7, 2, 16), randn(draw, 5, 7, 2, 16)
    slots, lengths = [4, 0, 2], [7, 0, 3]
    out = tk.attention_decode_reference(q, k, v, torch.tensor(slots), torch.tensor(lengths), scale=0.5)
    for sequence in (0, 2):
        slot, length = slots[sequence], lengths[sequence]
        for head in range(4):
            keys, values = k[slot, :length, head // 2], v[slot, :length, head // 2]
            assert relative_error(out[sequence, head], attend(q[sequence, head], keys, values, 0.5)) < 1e-5
    assert not out[1].any()  # nothing to attend to: zeros


def test_a_decode_step_gives_what_a_prefill_gives_for_its_last_token(draw: torch.Generator) -> None:
    q, k, v = randn(draw, 9, 4, 16), randn(draw, 9, 2, 16), randn(draw, 9, 2, 16)
    whole = tk.attention_prefill_reference(q, k, v, torch.tensor([0, 9]), 9)
    step = tk.attention_decode_reference(q[-1:], k[None], v[None], torch.tensor([0]), torch.tensor([9]))
    assert relative_error(step[0], whole[-1]) < 1e-6
