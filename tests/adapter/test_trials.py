"""Tuning from a census: candidates compiled in threads, measured as they come, and only with safe tensors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh, total_of
from tests.adapter.test_replay import cold, forget, recorded
from tritonprobe.adapter import trials
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.replay import Stale
from tritonprobe.prewarming.run import Tuning
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census, Entry
from tritonprobe.shapes.census_json import text_of_json

__all__ = ["forget"]
X = torch.empty(1024)
BLOCKS = (64, 128, 256, 512)


def test_a_grid_is_that_of_a_call_with_these_very_arguments() -> None:
    calls = tuple(text_of_json({"arguments": {"n": n}, "grid": [grid, 1, 1]}) for n, grid in ((1, 2), (True, 3)))
    entry = Entry("k", "h", "e", "m", "q", "s", "{}", (), calls=calls)
    assert trials._grid_of(entry, {"n": True}) == (3, 1, 1)
    assert trials._grid_of(entry, {"n": 1}) == (2, 1, 1)
    assert trials._grid_of(entry, {"n": None}) is None


def test_every_size_of_one_class_is_tuned_with_its_own_grids(
    instrumented: Runtime, forget: Callable[..., Path], times: dict[int, float], launches: list[int]
) -> None:
    tuner = tuner_of(kernels.add_kernel)
    sizes = (1024, 2048, 4096, 8192)
    for n in sizes:  # all divisible by 16: each configuration is one variant, which is new for the first size alone
        tuner[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](torch.empty(n), X, X, n)
    census = recorded(instrumented)
    assert (len(census.entries), len(census.tunings)) == (len(BLOCKS), len(sizes))
    grids = {json.loads(t.call)["arguments"]["n"]: [grid for *_, grid in t.trials] for t in census.tunings.values()}
    assert {n: sorted(found) for n, found in grids.items()} == {
        n: sorted((n // block,) for block in BLOCKS) for n in sizes
    }
    hashes = {digest for tuned in census.tunings.values() for _, digest, _ in tuned.trials}
    assert hashes == {entry.hash for entry in census.entries.values()}
    forget(tuner)
    times.update({n // block: 1.0 if n // block == 16 else 2.0 for n in sizes for block in BLOCKS})
    del launches[:]
    result = instrumented.prewarm(census, tune=Tuning())
    assert (result.winners, result.skipped) == (4, [])
    assert set(launches) == {n // block for n in sizes for block in BLOCKS}
    assert {key[0]: config.kwargs["BLOCK"] for key, config in tuner.cache.items()} == {
        1024: 64, 2048: 128, 4096: 256, 8192: 512,
    }  # fmt: skip


def test_a_census_of_before_trials_were_written_is_tuned_as_far_as_it_has_grids(
    instrumented: Runtime, forget: Callable[..., Path], times: dict[int, float]
) -> None:
    tuner = tuner_of(kernels.add_kernel)
    for n in (1024, 2048):
        tuner[grid](torch.empty(n), X, X, n)
    document = json.loads(instrumented.census().text())
    for tuned in document["tunings"]:
        del tuned["trials"]
    forget(tuner)
    times.update({16: 3.0, 8: 2.0, 4: 1.0, 2: 4.0})
    result = instrumented.prewarm(Census.parse(json.dumps(document)), tune=Tuning())
    assert result.winners == 1
    assert [skipped.because for skipped in result.skipped] == [
        "no trial was recorded of any configuration that its autotuner has"
    ]


@pytest.mark.parametrize("fixed", [(3, 2), [3, 2], lambda meta: (3, 2)], ids=["tuple", "list", "function"])
def test_the_program_sees_its_own_grid(instrumented: Runtime, fixed: Any) -> None:
    asked: list[Mapping[str, Any]] = []
    seen: list[Any] = []

    def theirs(meta: Mapping[str, Any]) -> Any:
        asked.append(dict(meta))
        return fixed(meta)

    configs = [triton.Config({"BLOCK": b}, pre_hook=lambda nargs: seen.append(nargs["grid"])) for b in (64, 128)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))
    tuner[theirs if callable(fixed) else fixed](X, X, X, 64)
    (tuned,) = recorded(instrumented).tunings.values()
    assert [grid for *_, grid in tuned.trials] == [(3, 2), (3, 2)]
    assert len(seen) == 3  # two trials and the launch
    if callable(fixed):
        assert [meta["BLOCK"] for meta in asked] == [64, 128, 64]  # asked as often as without us
        assert all(each({"BLOCK": 64}) == (3, 2) for each in seen)
    else:
        assert [(each[0], each[1], len(each)) for each in seen] == [(3, 2, 2)] * 3


@pytest.fixture
def launches() -> list[int]:
    """The first extent of every grid that was launched."""
    return []


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch, launches: list[int]) -> dict[int, float]:
    """Seconds that a launch with so many programs takes, in the place of a GPU's clock."""
    seconds: dict[int, float] = {}

    def measure(call: Callable[[], Any], budget: float) -> float:
        call()
        return seconds[launches[-1]]

    launch = trials_launcher()

    def counted(self: Any, x: int, *rest: Any) -> None:
        launches.append(x)
        launch(self, x, *rest)

    monkeypatch.setattr("tritonprobe.adapter.device.CompileOnlyLauncher.__call__", counted)
    monkeypatch.setattr(trials, "on_device", measure)
    return seconds


def trials_launcher() -> Any:
    from tritonprobe.adapter.device import CompileOnlyLauncher

    return CompileOnlyLauncher.__call__


def tuner_of(kernel: Any) -> Any:
    configs = [triton.Config({"BLOCK": block}) for block in BLOCKS]
    return triton.autotune(configs=configs, key=["n"])(fresh(kernel))


def grid(meta: Mapping[str, Any]) -> tuple[int]:
    return (triton.cdiv(1024, meta["BLOCK"]),)


def test_the_fastest_wins_and_nothing_is_cold(
    instrumented: Runtime, forget: Callable[..., Path], times: dict[int, float]
) -> None:
    tuner = tuner_of(kernels.add_kernel)
    times.update({16: 3.0, 8: 2.0, 4: 1.0, 2: 4.0})

    def traffic() -> None:
        tuner[grid](X, X, X, 1024)
        tuner[grid](X[1:], X, X, 1024)

    traffic()
    census = recorded(instrumented)
    trials_before = total_of(instrumented, "autotune_trials_total")
    folder = forget(tuner)
    begin, its_own = time.time_ns(), tuner.do_bench
    result = instrumented.prewarm(census, tune=Tuning())
    assert (result.winners, result.skipped) == (1, [])
    assert [config.kwargs for config in tuner.cache.values()] == [{"BLOCK": 256}]
    # Four candidates; the recorded winner and the new one for the class of arguments that was launched beside them.
    assert cubins_in(folder) == 6
    assert total_of(instrumented, "autotune_trials_total") - trials_before == 2 * len(BLOCKS)
    (chosen,) = [t for t in recorded(instrumented).tunings.values() if t.measured]
    assert chosen.winner == f'"{tuner.configs[2]}"'
    assert chosen.first_ns > begin
    assert {call.tier for call in cold(traffic)} <= {"disk", "memory"}
    assert tuner.nargs is None
    assert tuner.do_bench is its_own


def test_a_configuration_that_cannot_be_compiled_loses(
    instrumented: Runtime, forget: Callable[..., Path], times: dict[int, float]
) -> None:
    configs = [triton.Config({"WANTED": wanted}) for wanted in (1, 2)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.strict_kernel))
    times.update({1: 1.0})
    tuner[(1,)](X, 64, BLOCK=64)
    census = recorded(instrumented)
    entry = next(e for e in census.entries.values() if e.configs and "WANTED: 1" in e.configs[0])
    forget(tuner)
    broken = census.without(lambda e: e is not entry and "WANTED: 2" in e.configs[0])
    result = instrumented.prewarm(broken, tune=Tuning())
    assert (result.winners, result.skipped) == (1, [])
    assert str(tuner.best_config) == str(configs[0])


def test_indices_are_not_made_up(
    instrumented: Runtime, forget: Callable[..., Path], times: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = torch.zeros(1024, dtype=torch.int64)
    tuner = tuner_of(kernels.add_kernel)
    times.update({16: 1.0, 8: 2.0, 4: 3.0, 2: 4.0})
    tuner[grid](indices, indices, indices, 1024)
    census = recorded(instrumented)
    forget(tuner)
    result = instrumented.prewarm(census, tune=Tuning())
    assert result.winners == 0
    assert result.skipped[0].because == (
        "argument x holds torch.int64, which may be indices: register inputs_for the kernel"
    )
    monkeypatch.setattr(trials, "_generators", {})
    tritonprobe.inputs_for(
        "tests.adapter.kernels.add_kernel", lambda given: {n: indices.clone() for n in ("x", "y", "out")}
    )
    assert instrumented.prewarm(census, tune=Tuning()).winners == 1
    assert jit_function(tuner).device_caches


@pytest.mark.parametrize(
    ("shape", "strides", "aligned", "says"),
    [
        ([4, 8], [8, 1], True, None),
        ([4, 8], [16, 2], False, None),
        ([4, 8], [0, 1], True, None),
        ([0, 8], [8, 1], True, None),
        ([4], [-1], True, "has negative strides"),
    ],
)
def test_tensors_have_the_recorded_layout(
    shape: list[int], strides: list[int], aligned: bool, says: str | None
) -> None:
    wanted = {"dtype": "torch.float16", "shape": shape, "strides": strides, "aligned": aligned}
    if says is not None:
        with pytest.raises(Stale, match=says):
            trials._tensor("x", wanted)
        return
    made = trials._tensor("x", wanted)
    assert (list(made.shape), list(made.stride()), made.dtype) == (shape, strides, torch.float16)
    assert (made.data_ptr() % 16 == 0) is (aligned or not all(shape))
