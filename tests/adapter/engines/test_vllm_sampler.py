"""First uses of torch's kernels in vLLM's sampler: each path once, and before ready where there is a census."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from tritonprobe.adapter.engines.vllm_sampler import FIRST_USE, ROWS, Sampler
from tritonprobe.adapter.patching import Patches
from tritonprobe.model import ColdCall

SLOW_SECONDS = 0.02


class Host:
    def __init__(self) -> None:
        self.told: list[ColdCall] = []

    def tell(self, cold: ColdCall) -> None:
        self.told.append(cold)


@pytest.fixture
def module() -> ModuleType:
    """As vLLM's, with a path through its function that takes its time when it is first taken."""
    made = ModuleType("vllm.v1.sample.ops.topk_topp_sampler")
    taken: set[tuple[bool, bool]] = set()

    def apply_top_k_top_p_pytorch(logits: Any, k: Any, p: Any) -> Any:
        if (k is None, p is None) not in taken:
            taken.add((k is None, p is None))
            time.sleep(SLOW_SECONDS)
        return logits

    made.apply_top_k_top_p_pytorch = apply_top_k_top_p_pytorch  # type: ignore[attr-defined]
    return made


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def sampler(host: Host, module: ModuleType) -> Iterator[Sampler]:
    made, patches = Sampler(host, lambda: True), Patches()  # type: ignore[arg-type]  # of a host it only tells
    made.install(patches, module)
    yield made
    assert patches.undo() == []


def test_the_first_use_of_a_path_is_a_cold_call_and_the_next_is_none(host: Host, module: Any, sampler: Sampler) -> None:
    logits, p = torch.zeros(1, 10), torch.full((1,), 0.9)
    for _ in range(3):
        assert module.apply_top_k_top_p_pytorch(logits, None, p) is logits
    (cold,) = host.told
    assert (cold.kernel, cold.kind) == (f"{module.__name__}.apply_top_k_top_p_pytorch", FIRST_USE)
    assert cold.wall_ns >= SLOW_SECONDS * 1e9


def test_a_warmed_sampler_has_no_first_use_left(host: Host, module: Any, sampler: Sampler) -> None:
    sampler.vocabulary = 10
    sampler.warm("cpu")
    assert len(host.told) == 3, "with top-k, with top-p, with both"
    host.told.clear()
    one = torch.full((2,), 1)
    for k, p in ((one, None), (None, one), (one, one)):
        module.apply_top_k_top_p_pytorch(torch.zeros(2, 10), k, p)
    assert host.told == []


def test_made_up_logits_take_no_random_numbers_from_the_program(sampler: Sampler) -> None:
    sampler.vocabulary = 10
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    sampler.warm("cpu")
    assert torch.equal(torch.rand(4), expected)


def test_made_up_logits_are_as_wide_as_the_vocabulary_and_below_vllms_triton_kernel(
    module: Any, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    monkeypatch.setattr(module, "apply_top_k_top_p_pytorch", lambda logits, k, p: shapes.append(tuple(logits.shape)))
    sampler.vocabulary = 10
    sampler.warm("cpu")
    monkeypatch.undo()
    assert set(shapes) == {(rows, 10) for rows in ROWS}
    assert max(ROWS) < 8


def test_where_no_worker_has_said_how_many_tokens_there_are_nothing_is_made_up(host: Host, sampler: Sampler) -> None:
    sampler.warm("cpu")
    assert host.told == []
