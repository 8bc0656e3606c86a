"""Every op gives its reference's answer on a GPU, by its kernel: all dtypes and layouts, tails, every configuration."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch
import triton

import tritonprobe_kernels as tk
from tests.kernels.cases import CORE, DTYPES, LAYOUTS, MORE, Case, Inputs, Layout, check, relative_error
from tests.kernels.counts import fallbacks

pytestmark = pytest.mark.gpu

OPS = ("add", "softmax", "rmsnorm", "swiglu", "rope", "matmul", "attention_prefill", "attention_decode")
matmul_module = importlib.import_module("tritonprobe_kernels.matmul")
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """An op that falls back gives the right answer, too: only the counts tell that the kernel did it."""
    before = {op: fallbacks(op) for op in OPS}
    yield
    assert {op: fallbacks(op) for op in OPS} == before


@pytest.fixture
def one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """The autotuner is left one configuration, so that shape after shape needs no tuning."""
    monkeypatch.setattr(matmul_module.matmul_kernel, "configs", matmul_module.CONFIGS[1:2])


@by_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CORE, ids=str)
def test_each_op_in_each_layout(case: Case, layout: Layout, dtype: torch.dtype, one_config: None) -> None:
    check(case, dtype, layout, device="cuda")


@by_dtype
@pytest.mark.parametrize("case", MORE, ids=str)
def test_other_shapes_and_options(case: Case, dtype: torch.dtype, one_config: None) -> None:
    check(case, dtype, "contiguous", device="cuda", seed=1)


@by_dtype
@pytest.mark.parametrize("config", matmul_module.CONFIGS, ids=str)
def test_every_matmul_configuration(config: triton.Config, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = triton.runtime.driver.active.utils.get_device_properties(0)["max_shared_mem"]
    if dtype == torch.float32 and config is matmul_module.CONFIGS[-1] and shared < 192 * 1024:
        pytest.skip(f"needs 192 KiB of shared memory, and this GPU has {shared // 1024}")
    monkeypatch.setattr(matmul_module.matmul_kernel, "configs", [config])
    case = next(case for case in CORE if case.op is tk.matmul)
    check(case, dtype, "contiguous", device="cuda", seed=2)


@by_dtype
def test_a_tuned_matmul_at_several_token_counts(dtype: torch.dtype) -> None:
    inputs = Inputs(dtype, "contiguous", "cuda", torch.Generator().manual_seed(3))
    weight, bias = inputs.floats(1_000, 512).t(), inputs.floats(1_000)
    keys = len(matmul_module.matmul_kernel.cache)
    for tokens in (1, 16, 33, 700):
        a = inputs.floats(tokens, 512)
        out = tk.matmul(a, weight, bias=bias, activation="silu", scale=0.05)
        expected = tk.matmul_reference(a, weight, bias=bias, activation="silu", scale=0.05)
        assert relative_error(out, expected) < {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}[dtype]
    assert len(matmul_module.matmul_kernel.cache) == keys + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_at_a_models_size(dim: int, dtype: torch.dtype) -> None:
    inputs = Inputs(dtype, "contiguous", "cuda", torch.Generator().manual_seed(4))
    lengths = [1_000, 17, 1, 513]
    bounds = [0, 1_000, 1_017, 1_018, 1_531]
    q, k, v = (inputs.floats(bounds[-1], heads, dim) for heads in (32, 8, 8))
    offsets = inputs.indices(bounds)
    out = tk.attention_prefill(q, k, v, offsets, max(lengths))
    expected = tk.attention_prefill_reference(q, k, v, offsets, max(lengths))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert relative_error(out, expected) < tolerance

    # The last token of each prompt again, as a decode step over the same keys in a cache.
    k_cache, v_cache = (torch.full((6, 1_024, 8, dim), float("nan"), dtype=dtype, device="cuda") for _ in range(2))
    slots = [4, 0, 5, 2]
    for slot, start, length in zip(slots, bounds, lengths, strict=False):
        k_cache[slot, :length] = k[start : start + length]
        v_cache[slot, :length] = v[start : start + length]
    last = inputs.indices([end - 1 for end in bounds[1:]]).long()
    step = tk.attention_decode(q[last], k_cache, v_cache, inputs.indices(slots), inputs.indices(lengths))
    assert relative_error(step, expected[last]) < tolerance


def test_offsets_beyond_32_bits() -> None:
    """The last row of a tensor of more than 2^31 elements."""
    rows, columns = 2**31 // 4_096 + 8, 4_096
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.arange(columns, device="cuda") / columns
    weight = torch.ones(columns, dtype=torch.bfloat16, device="cuda")
    assert relative_error(tk.rmsnorm(x, weight)[-1], tk.rmsnorm_reference(x[-1], weight)) < 5e-3
    assert relative_error(tk.softmax(x)[-1], tk.softmax_reference(x[-1])) < 5e-3
    assert relative_error(tk.swiglu(x)[-1], tk.swiglu_reference(x[-1])) < 5e-3
    tail = x.view(-1)[-(2**16) :]
    assert torch.equal(tk.add(x, x).view(-1)[-(2**16) :], tail + tail)
    # As a cache: the last of its slots.
    cache = x.view(-1, 8, 8, 64)
    q = torch.ones(1, 8, 64, dtype=torch.bfloat16, device="cuda")
    last = torch.tensor([cache.shape[0] - 1], device="cuda")
    length = torch.tensor([8], device="cuda")
    out = tk.attention_decode(q, cache, cache, last, length)
    assert relative_error(out, tk.attention_decode_reference(q, cache, cache, last, length)) < 5e-3
