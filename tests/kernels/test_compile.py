"""Every kernel compiles, on a machine without a GPU, for every target; and token counts share their variants.

The evidence is what Triton's compiler leaves in an empty cache folder.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tritonprobe_kernels as tk
from tests.kernels.cases import CORE, MORE, Inputs
from tests.kernels.counts import fallbacks
from tritonprobe.testing import compile_only

OPS = ("add", "softmax", "rmsnorm", "swiglu", "rope", "matmul", "attention_prefill", "attention_decode")
matmul_module = importlib.import_module("tritonprobe_kernels.matmul")


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """Empties Triton's caches, in memory and on disk; a call of it counts the cubins compiled since, by kernel."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name in OPS:
        kernel = getattr(importlib.import_module(f"tritonprobe_kernels.{name}"), f"{name}_kernel")
        if name == "matmul":
            kernel.cache.clear()
            kernel = kernel.fn
        for caches in kernel.device_caches.values():
            caches[0].clear()
    return lambda: Counter(path.stem for path in tmp_path.rglob("*.cubin"))


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("cuda:80", torch.float16),
        ("cuda:90", torch.bfloat16),
        ("cuda:90", torch.float32),
        ("cuda:100", torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_each_kernel_compiles(
    op: str, target: str, dtype: torch.dtype, compiled: Callable[[], Counter[str]], tmp_path: Path
) -> None:
    case = next(case for case in CORE if case.op.__name__ == op)
    args, kwargs = case.make(Inputs(dtype, "contiguous", "cpu", torch.Generator().manual_seed(0)))
    with compile_only(target):
        out = case.op(*args, **kwargs)
    expected = case.reference(*args, **kwargs)

    # A configuration that needs more shared memory than the target has is compiled all the same.
    assert compiled() == {f"{op}_kernel": len(matmul_module.CONFIGS) if op == "matmul" else 1}
    ptx = next(tmp_path.rglob(f"{op}_kernel.ptx")).read_text()
    assert re.search(rf"^\.target sm_{target.removeprefix('cuda:')}", ptx, re.MULTILINE)
    assert torch.equal(out, expected)  # the compile-only device answers with the reference
    assert not fallbacks(op)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_attention_fits_the_smallest_gpu_with_every_head_dimension(
    dtype: torch.dtype, dim: int, compiled: Callable[[], Counter[str]], tmp_path: Path
) -> None:
    """A block may have 99 KiB of shared memory on compute capability 8.6 and 8.9 (CUDA C++ Programming Guide)."""
    q, kv = torch.zeros(8, 4, dim, dtype=dtype), torch.zeros(8, 2, dim, dtype=dtype)
    with compile_only("cuda:80"):
        tk.attention_prefill(q, kv, kv, torch.tensor([0, 8]), 8)
        tk.attention_decode(q[:1], kv[None], kv[None], torch.tensor([0]), torch.tensor([8]))
    assert compiled() == {"attention_prefill_kernel": 1, "attention_decode_kernel": 1}
    for metadata in tmp_path.rglob("attention_*_kernel.json"):
        shared = re.search(r'"shared": (\d+)', metadata.read_text())
        assert shared is not None
        assert int(shared[1]) <= 99 * 1024


def test_token_counts_share_their_variants(compiled: Callable[[], Counter[str]]) -> None:
    """Thousands of token counts come by; what compiles is bounded by Triton's classes of integers: 1, %16 and other."""
    cos, sin = tk.rope_tables(300, 16)
    weight = torch.zeros(32, 48, dtype=torch.float16)
    with compile_only("cuda:90"):
        for tokens in (1, 2, 3, 16, 17, 48, 65, 100, 128, 257):
            x = torch.zeros(tokens, 32, dtype=torch.float16)
            heads = x.view(tokens, 2, 16)
            index = torch.zeros(tokens, dtype=torch.int64)
            cache = torch.zeros(2, tokens, 2, 16, dtype=torch.float16)
            tk.add(x[:, 0].clone(), x[:, 1].clone())
            tk.rmsnorm(x, x[0])
            tk.swiglu(x)
            tk.rope(heads, index, cos, sin)
            tk.matmul(x, weight)
            tk.attention_prefill(heads, heads, heads, torch.tensor([0, tokens]), tokens)
            tk.attention_decode(heads, cache, cache, index, index + 1)
    configs = len(matmul_module.CONFIGS)
    assert compiled() == {
        "add_kernel": 3,
        "rmsnorm_kernel": 1,
        "swiglu_kernel": 1,
        "rope_kernel": 1,
        "matmul_kernel": configs + 2,  # all of them for the first count, which tunes; then the winner alone
        "attention_prefill_kernel": 1,
        "attention_decode_kernel": 1,
    }


def test_matmul_is_tuned_once_for_a_weight(compiled: Callable[[], Counter[str]]) -> None:
    weight = torch.zeros(64, 96, dtype=torch.float16)
    with compile_only("cuda:90"):
        for tokens in (16, 32, 48, 64, 1_000 * 16):
            tk.matmul(torch.zeros(tokens, 64, dtype=torch.float16), weight)
        assert len(matmul_module.matmul_kernel.cache) == 1
        tk.matmul(torch.zeros(16, 96, dtype=torch.float16), weight.t())
        assert len(matmul_module.matmul_kernel.cache) == 2


def test_every_op_has_a_case() -> None:
    assert {case.op.__name__ for case in CORE} == {case.op.__name__ for case in MORE} == set(OPS)
