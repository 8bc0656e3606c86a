"""Patches that go and come while something is under way: what was begun is what it was, and nothing is left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton

from tests.adapter import kernels
from tests.adapter.conftest import fresh, total_of
from tritonprobe.adapter import binder
from tritonprobe.adapter.kernels import living_kernels
from tritonprobe.adapter.rewrite import counting_binder
from tritonprobe.runtime import Runtime

X = torch.empty(64)
CONFIGS = 6


def on_another_thread(act: Callable[[], Any]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def tuner(in_trial: int, act: Callable[[], Any]) -> Any:
    """A tuner of `CONFIGS` configurations; `act` is called once, on a thread of its own, inside of trial `in_trial`."""

    def hook(arguments: dict[str, Any]) -> None:
        if arguments["BLOCK"] == 16 << in_trial and not done:
            done.append(1)
            on_another_thread(act)

    done: list[int] = []
    configs = [triton.Config({"BLOCK": 16 << i}, pre_hook=hook) for i in range(CONFIGS)]
    return triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))


@pytest.mark.parametrize("trial", [0, 2, CONFIGS - 1])
def test_trials_stay_trials_where_it_is_switched_off_and_on_in_one(instrumented: Runtime, trial: int) -> None:
    def off_and_on() -> None:
        instrumented.unwatch(keep_device=True)
        instrumented.watch(everything=False)

    tuned = tuner(trial, off_and_on)
    tuned[(1,)](X, X, X, 64)
    assert total_of(instrumented, "launches_total") == 1
    assert total_of(instrumented, "autotune_trials_total") >= CONFIGS - 1
    for _ in range(5):
        tuned[(1,)](X, X, X, 64)
    assert total_of(instrumented, "launches_total") == 6


@pytest.mark.parametrize("trial", [0, 2, CONFIGS - 1])
def test_a_trial_that_began_before_the_patches_came_is_none_of_the_launches(instrumented: Runtime, trial: int) -> None:
    one = fresh(kernels.add_kernel)
    one[(1,)](X, X, X, 64, BLOCK=16)
    instrumented.unwatch(keep_device=True)
    tuned = tuner(trial, lambda: instrumented.watch(everything=False))
    tuned[(1,)](X, X, X, 64)
    assert total_of(instrumented, "launches_total") == 2
    for _ in range(5):
        tuned[(1,)](X, X, X, 64)
        one[(1,)](X, X, X, 64, BLOCK=16)
    assert total_of(instrumented, "launches_total") == 12
    cells = [
        namespace["_tritonprobe_cells"]
        for site in instrumented.adapter.registry.sites()
        for namespace in site.namespaces
    ]
    assert all(cells), "a binder goes on asking what each launch is for"


def test_a_binder_that_is_being_made_when_the_patches_go_stays_nowhere(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = fresh(kernels.add_kernel)
    gone = threading.Event()

    def unwatch() -> None:
        instrumented.unwatch(keep_device=True)
        gone.set()

    off = threading.Thread(target=unwatch)

    def slow(*args: Any) -> Any:
        off.start()
        gone.wait(0.3)  # it has to wait for us
        return counting_binder(*args)

    monkeypatch.setattr("tritonprobe.adapter.binder.counting_binder", slow)
    kernel[(1,)](X, X, X, 64, BLOCK=16)
    off.join()
    before = total_of(instrumented, "launches_total")
    kernel[(1,)](X, X, X, 64, BLOCK=16)
    assert total_of(instrumented, "launches_total") == before
    assert not any(hasattr(entry[4], binder.PLAIN) for entry in kernel.device_caches.values())


def test_a_first_binder_that_nobody_found_goes_by_itself(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, first = fresh(kernels.add_kernel), instrumented.adapter._binders._first

    def late(*args: Any) -> Any:
        made = first(*args)
        on_another_thread(lambda: instrumented.unwatch(keep_device=True))
        return made

    monkeypatch.setattr(instrumented.adapter._binders, "_first", late)
    kernel[(1,)](X, X, X, 64, BLOCK=16)
    assert not any(hasattr(entry[4], binder.PLAIN) for entry in kernel.device_caches.values())
    assert total_of(instrumented, "launches_total") == 0


@pytest.fixture
def frozen() -> Iterator[Callable[[], None]]:
    """`gc.freeze`, undone afterwards."""
    yield gc.freeze
    gc.unfreeze()


def test_kernels_that_the_collector_hides_are_found_again(instrumented: Runtime, frozen: Callable[[], None]) -> None:
    launched, made = [fresh(kernels.add_kernel)], [fresh(kernels.add_kernel)]

    def both() -> float:
        before = total_of(instrumented, "launches_total")
        for (kernel,) in (launched, made):
            kernel[(1,)](X, X, X, 64, BLOCK=16)
        return total_of(instrumented, "launches_total") - before

    launched[0][(1,)](X, X, X, 64, BLOCK=16)
    instrumented.unwatch(keep_device=True)
    assert both() == 0
    frozen()
    assert not {id(launched[0]), id(made[0])} & {id(each) for each in living_kernels()}
    instrumented.watch(everything=False)
    assert both() == 2
    instrumented.unwatch(keep_device=True)
    assert both() == 0
    assert not any(hasattr(entry[4], binder.PLAIN) for k in (launched, made) for entry in k[0].device_caches.values())


def test_kernels_that_are_gone_are_not_kept(instrumented: Runtime) -> None:
    registry = instrumented.adapter.registry
    before = len(registry._made)
    for _ in range(2000):
        fresh(kernels.add_kernel)
    assert len(registry._made) < before + 1000
