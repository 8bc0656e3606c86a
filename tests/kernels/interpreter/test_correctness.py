"""Every op gives its reference's answer on Triton's interpreter: all dtypes and layouts, tails, every configuration."""

from __future__ import annotations

import importlib

import pytest
import torch
import triton

import tritonprobe_kernels as tk
from tests.kernels.cases import CORE, DTYPES, LAYOUTS, MORE, Case, Layout, check
from tests.kernels.counts import fallbacks, paths

matmul_module = importlib.import_module("tritonprobe_kernels.matmul")
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is nothing to time, so the autotuner is left one configuration: it takes it untimed."""
    monkeypatch.setattr(matmul_module.matmul_kernel, "configs", matmul_module.CONFIGS[:1])


@by_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CORE, ids=str)
def test_each_op_in_each_layout(case: Case, layout: Layout, dtype: torch.dtype) -> None:
    name = case.op.__name__
    before = paths(name)
    check(case, dtype, layout)
    assert paths(name) - before == {"triton": 1}
    assert not fallbacks(name)


@by_dtype
@pytest.mark.parametrize("case", MORE, ids=str)
def test_other_shapes_and_options(case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, "contiguous", seed=1)


@pytest.mark.parametrize("config", matmul_module.CONFIGS, ids=str)
def test_every_matmul_configuration(config: triton.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_module.matmul_kernel, "configs", [config])
    for case in CORE + MORE:
        if case.op is tk.matmul:
            check(case, torch.float32, "padded_rows", seed=2)
