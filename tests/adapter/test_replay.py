"""What was recorded is replayed to the same binaries, and what cannot be replayed is named and skipped."""

from __future__ import annotations

import enum
import json
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh, samples_of, total_of
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.model import ColdCall
from tritonprobe.prewarming import Prewarmed
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census, Entry
from tritonprobe.testing import capture_cold_calls, compile_only

X = torch.empty(1024)
Pair = namedtuple("Pair", "a b")


@triton.jit
def double(v):
    return v * 2


class Mode(enum.IntEnum):
    PLAIN = 0
    FANCY = 3


@triton.jit
def enum_kernel(x, BLOCK: tl.constexpr, MODE: tl.constexpr, DT: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), MODE)


@triton.jit
def everything_kernel(
    x, s, n, v, y, BLOCK: tl.constexpr, DT: tl.constexpr, F: tl.constexpr, TUP: tl.constexpr, WORD: tl.constexpr
):
    o = tl.arange(0, BLOCK)
    r = (s[0] + n + TUP[1]).to(tl.float32)
    if F is not None:
        r = F(r)
    if WORD == "add":
        r += v
    if y is None:
        tl.store(x + o, r.to(DT))
    else:
        tl.store(x + o, r.to(DT) + tl.load(y + o).to(DT))


@pytest.fixture
def forget(instrumented: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``forget(kernel, ...)``: as in a new process with an empty cache folder. Returns the folder."""
    folders = (tmp_path / f"cache-{i}" for i in range(9))

    def forget(*known: Any) -> Path:
        for kernel in known:
            getattr(kernel, "cache", {}).clear()
            jit_function(kernel).device_caches.clear()
        folder = next(folders)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        return folder

    return forget


def recorded(runtime: Runtime) -> Census:
    """By way of the file's text."""
    return Census.parse(runtime.census().text())


def cold(*launches: Callable[[], Any]) -> list[ColdCall]:
    with capture_cold_calls() as calls:
        for launch in launches:
            launch()
    return calls


def test_aligned_and_unaligned_are_replayed_and_nothing_is_cold(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    def traffic() -> None:
        add(X, X, X, 64)
        add(X[1:], X, X, 64)
        add(X[1:], X[1:], X[1:], 63)
        add(X, X, X, 1)

    assert len(cold(traffic)) == 4
    census = recorded(instrumented)
    folder = forget(add.kernel)
    result = tritonprobe.prewarm(census)
    assert (result.planned, result.replayed, result.skipped, result.coverage) == (4, 4, [], 1.0)
    assert cubins_in(folder) == 4
    assert cold(traffic) == []
    # Every kernel object of that name got it (other tests' live on): one compiled, the others read.
    compiled = {k: v for k, v in samples_of(instrumented, "cache_lookups_total").items() if k[2] == "compile"}
    assert sum(compiled.values()) == 8


def test_dropping_one_dtype_leaves_exactly_its_variants_cold(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    half = X.half()

    def traffic() -> None:
        for x in (X, half):
            for n in (1, 16, 17):
                add(x, x, x, n)

    traffic()
    census = recorded(instrumented).without(lambda entry: dict(entry.classes)["x"].startswith("*fp16"))
    assert len(census.entries) == 3
    forget(add.kernel)
    assert tritonprobe.prewarm(census).replayed == 3
    after = cold(traffic)
    assert len(after) == 3
    assert all(dict(c.variant.args)["x"].type == "*fp16" for c in after if c.variant is not None)


def test_every_kind_of_argument_and_constant_comes_to_the_same_hash(
    instrumented: Runtime, forget: Callable[..., Path]
) -> None:
    kernel = everything_kernel

    def traffic() -> None:
        kernel[(1,)](X, (3, 16), 7, 2.5, None, 64, tl.float32, double, (1, 2), "add")
        kernel[(1,)](X, Pair(3, 1), 7, 2.5, X, 64, tl.float16, None, (1, 2), "no")
        kernel[(1,)](X, (3, 1 << 33), 1 << 40, True, X[1:], 64, tl.bfloat16, double, (1, 2, 3), "no", num_warps=8)
        kernel[(1,)](X, (1, 1), 16, float("inf"), None, 32, tl.float32, double, (1, 2), "no", num_stages=2, maxnreg=128)

    traffic()
    census = recorded(instrumented)
    assert {e.kernel for e in census.entries.values()} == {f"{__name__}.everything_kernel"}
    forget(kernel)
    result = tritonprobe.prewarm(census)
    assert (result.replayed, result.skipped) == (4, [])
    assert cold(traffic) == []


def test_constants_of_a_programs_own_enumerations_and_of_torch_are_replayed(
    instrumented: Runtime, forget: Callable[..., Path]
) -> None:
    def traffic() -> None:
        enum_kernel[(1,)](X, 64, Mode.FANCY, torch.float16)
        enum_kernel[(1,)](X, 64, Mode.PLAIN, torch.bfloat16)

    traffic()
    census = recorded(instrumented)
    assert dict(census.dropped) == {}
    forget(enum_kernel)
    result = tritonprobe.prewarm(census)
    assert (result.replayed, result.skipped) == (2, [])
    assert cold(traffic) == []


def test_equal_values_of_several_types_are_replayed_as_what_they_were(
    instrumented: Runtime, forget: Callable[..., Path]
) -> None:
    """True equals 1, as an argument and as an option that the target has by itself."""
    kernel = fresh(kernels.strict_kernel)

    def traffic() -> None:
        for one in (1, True, 1.0):
            kernel[(1,)](X, one, BLOCK=64, WANTED=1)
        kernel[(1,)](X, 2, BLOCK=64, WANTED=1, num_ctas=True)

    traffic()
    census = recorded(instrumented)
    assert dict(census.dropped) == {}
    forget(kernel)
    result = tritonprobe.prewarm(census)
    assert (result.replayed, result.skipped) == (4, [])
    assert cold(traffic) == []


def test_a_grid_is_that_of_its_own_call_though_another_one_equals_it(instrumented: Runtime) -> None:
    kernel = fresh(kernels.typed_kernel)  # for which True and 1 are one variant
    kernel.warmup(X, True, BLOCK=64, grid=(1,))
    kernel[(3,)](X, 1, BLOCK=64)
    (entry,) = recorded(instrumented).entries.values()
    grids = {repr(call["arguments"]["n"]): call.get("grid") for call in map(json.loads, entry.calls)}
    assert grids == {"True": None, "1": [3, 1, 1]}


def test_what_has_no_word_is_counted(instrumented: Runtime) -> None:
    enum_kernel[(1,)](X, 64, Mode.PLAIN, object())
    census = recorded(instrumented)
    assert (len(census.entries), dict(census.dropped)) == (0, {"unrecordable": 1})


def test_one_variant_under_two_in_memory_keys_is_one_binary(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    def traffic() -> None:
        add(X, X, X, 64)
        add(X, X, X, 64, num_warps=4)

    traffic()
    (entry,) = recorded(instrumented).entries.values()
    assert len(entry.keys) == 2
    folder = forget(add.kernel)
    tritonprobe.prewarm(recorded(instrumented))
    assert cubins_in(folder) == 1
    assert cold(traffic) == []


def test_a_winner_is_taken_over_and_what_lost_is_not_compiled(
    instrumented: Runtime, forget: Callable[..., Path]
) -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))

    def traffic() -> None:
        tuner[(1,)](X, X, X, 64)
        tuner[(1,)](X, X, X, 1024)

    traffic()
    census = recorded(instrumented)
    (entry,) = [e for e in census.entries.values() if e.configs and "BLOCK: 64" in e.configs[0]]
    assert [json.loads(t.key)["tuple"][0] for t in census.tunings.values()] in ([64, 1024], [1024, 64])
    census = replace(census, tunings={k: replace(t, measured=True) for k, t in census.tunings.items()})
    folder = forget(tuner)
    result = tritonprobe.prewarm(census)
    assert (result.replayed, result.unneeded, result.winners, result.skipped) == (1, 2, 2, [])
    assert cubins_in(folder) == 1
    assert cold(traffic) == []
    assert str(tuner.best_config) in entry.configs


def test_a_tuner_that_is_yet_to_choose_finds_every_configuration_on_disk(
    instrumented: Runtime, forget: Callable[..., Path]
) -> None:
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))

    def traffic() -> None:
        tuner[(1,)](X, X, X, 64)  # all configurations, for aligned x
        tuner[(1,)](X[1:], X, X, 64)  # the winner alone, for x that is not

    traffic()
    census = recorded(instrumented)
    folder = forget(tuner)
    result = instrumented.prewarm(census, expand=True)
    assert (result.replayed, result.configurations, cubins_in(folder)) == (5, 3, 8)
    jit_function(tuner).device_caches.clear()
    for order in (configs, configs[::-1]):  # whoever wins
        tuner.configs = order
        tuner.cache.clear()
        assert {call.tier for call in cold(traffic)} <= {"disk", "memory"}


def test_a_winner_of_another_device_is_not_taken_over(instrumented: Runtime, forget: Callable[..., Path]) -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))
    (call,) = cold(lambda: tuner[(1,)](X, X, X, 64))
    census = recorded(instrumented)
    text = census.text().replace("compile-only:cuda:90", "cuda:90 (NVIDIA H200)")
    (old,) = census.environments
    (new,) = (replace(e, device="cuda:90 (NVIDIA H200)").id for e in census.environments.values())
    forget(tuner)
    result = tritonprobe.prewarm(Census.parse(text.replace(old, new)))
    assert result.winners == 0
    assert "its winner was chosen on cuda:90 (NVIDIA H200)" in result.skipped[0].because
    assert [f"no autotune winner yet for {skipped.key}" for skipped in result.skipped] == list(call.reasons[:1])


def stale(census: Census, **change: Any) -> str:
    entries = [replace(entry, **change) for entry in census.entries.values()]
    result = tritonprobe.prewarm(Census.of(census.environments.values(), entries, (), census.launches))
    assert (result.replayed, len(result.skipped)) == (0, 1)
    return result.skipped[0].because


def test_stale_entries_are_named_and_skipped(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    add(X, X, X, 64)
    census = recorded(instrumented)
    (environment,) = census.environments.values()
    folder = forget(add.kernel)
    assert stale(census, source="0" * 16) == "the kernel's source changed, or something that it calls"
    gone = {"kernel": "tests.adapter.kernels.gone", "qualname": "gone"}
    assert stale(census, **gone) == "tests.adapter.kernels has no gone"
    assert stale(census, kernel="a.b", module="antigravity.b") == (
        "module antigravity.b is not one that the program loaded; allow antigravity"
    )
    assert "cannot be imported: ModuleNotFoundError" in stale(census, kernel="a.b", module="tests.adapter.nowhere")
    program = stale(census, kernel="a.b", module="tests.adapter.a_program")
    assert "tests.adapter.a_program cannot be imported: SystemExit" in program
    other = replace(environment, triton="3.5.0", target="cuda:100", variables=(("USE_IR_LOC", "1"),))
    moved = Census.of([other], [replace(e, environment=other.id) for e in census.entries.values()])
    assert stale(moved) == (
        "made for cuda:100, this is cuda:90; "
        f"made by Triton 3.5.0, this is {triton.__version__}; USE_IR_LOC was '1', here 'not set'"
    )
    assert cubins_in(folder) == 0
    assert len(cold(lambda: add(X, X, X, 64))) == 1


def test_a_replay_that_comes_to_another_hash_leaves_nothing_in_memory(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    add(X, X, X, 64)
    forget(add.kernel)
    assert stale(recorded(instrumented), hash="f" * 64).startswith("compiled to ")
    assert all(not cache[0] for cache in add.kernel.device_caches.values())


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"signature": 5, "constexprs": [], "attrs": [], "options": {}},
        {"signature": [], "constexprs": [[[0], {"exec": "1"}]], "attrs": [], "options": {}},
        {"signature": [], "constexprs": [[[0], {"namedtuple": ["os", "system", []]}]], "attrs": [], "options": {}},
        {"signature": [], "constexprs": [[[0], {"enum": ["os", "system", "x"]}]], "attrs": [], "options": {}},
        {"signature": [], "constexprs": [[[0], {"torch": "torch.load"}]], "attrs": [], "options": {}},
        {"signature": [], "constexprs": [[[0], {"dtype": "pointer<fp32>"}]], "attrs": [], "options": {}},
    ],
)
def test_inputs_that_nobody_wrote_are_refused(
    instrumented: Runtime, add: Any, forget: Callable[..., Path], inputs: Any
) -> None:
    add(X, X, X, 64)
    forget(add.kernel)
    assert stale(recorded(instrumented), inputs=json.dumps(inputs), keys=("k",)).startswith(("cannot read", "inputs "))


def test_prewarming_is_a_warm_up_that_stalls_nobody(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    add(X, X, X, 64)
    census = recorded(instrumented)
    forget(add.kernel)
    tritonprobe.ready()
    before = total_of(instrumented, "cold_calls_after_ready_total")
    calls = cold(lambda: tritonprobe.prewarm(census))
    assert {(call.kind, call.mode, call.background) for call in calls} == {("prewarm", "warmup", True)}
    assert "compile" in {call.tier for call in calls}
    assert total_of(instrumented, "cold_calls_after_ready_total") == before
    looked_up = sum(found.count for call in calls for found in call.lookups)
    assert total_of(instrumented, "warmups_total") == looked_up > 0
    assert total_of(instrumented, "launches_total") == 1
    assert samples_of(instrumented, "prewarm_coverage_ratio") == {(): 1.0}


def test_a_prewarmed_process_hands_the_census_on(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    add(X, X, X, 64)
    census = recorded(instrumented)
    instrumented.adapter.census.after_fork()  # empty, as in a new process
    forget(add.kernel)
    tritonprobe.prewarm(census)
    (entry,) = recorded(instrumented).entries.values()
    (was,) = census.entries.values()
    assert (entry.identity, entry.inputs, entry.keys) == (was.identity, was.inputs, was.keys)


def test_prewarming_does_not_bring_back_what_was_taken_out(instrumented: Runtime, add: Any) -> None:
    add(X, X, X, 64)
    census = instrumented.census()
    tritonprobe.uninstrument()
    assert not tritonprobe.prewarm(census).skipped
    assert instrumented.adapter._patches._done == []


def test_uninstrumented_processes_can_prewarm_too(runtime: Runtime, add: Any) -> None:
    tritonprobe.instrument()
    add(X, X, X, 64)
    census = recorded(runtime)
    tritonprobe.uninstrument()
    add.kernel.device_caches.clear()
    runtime.adapter.install()
    assert tritonprobe.prewarm(census).replayed == 1


def test_an_interrupt_keeps_what_is_done(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    for n in (1, 16, 17):
        add(X, X, X, n)
    census = recorded(instrumented)
    folder = forget(add.kernel)

    def interrupted(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    result = tritonprobe.prewarm(census, threads=1, progress=interrupted)
    assert result.stopped == "interrupt"
    assert 1 <= cubins_in(folder) <= 3
    again = tritonprobe.prewarm(census, threads=1)
    assert (again.stopped, cubins_in(folder)) == (None, 3)


def test_a_deadline_stops_what_is_not_begun(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    for n in (1, 16, 17):
        add(X, X, X, n)
    census = recorded(instrumented)
    forget(add.kernel)
    result = tritonprobe.prewarm(census, budget=1e-9)
    assert (result.replayed, result.planned + result.left_out) == (0, 3)
    assert result.coverage == 0.0


def test_another_target_is_compiled_without_a_gpu(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    with compile_only("cuda:80"):
        add(X, X, X, 64)
    census = recorded(instrumented)
    folder = forget(add.kernel)
    result = tritonprobe.prewarm(census)  # cuda:90 is the device here
    assert (result.replayed, result.coverage) == (0, None)
    with compile_only("cuda:80"):
        assert tritonprobe.prewarm(census).replayed == 1
    assert cubins_in(folder) == 1


def test_entries_are_what_was_met(instrumented: Runtime, add: Any) -> None:
    add(X[1:], X, X, 64)
    add(X[1:], X, X, 64)
    census = recorded(instrumented)
    (entry,) = census.entries.values()
    assert isinstance(entry, Entry)
    assert dict(entry.classes) == {
        "x": "*fp32 unaligned",
        "y": "*fp32 %16",
        "out": "*fp32 %16",
        "n": "i32 %16",
        "BLOCK": "constexpr 128",
    }
    (call,) = map(json.loads, entry.calls)
    assert call["grid"] == [1, 1, 1]
    assert call["arguments"]["x"] == {
        "tensor": {"dtype": "torch.float32", "shape": [1023], "strides": [1], "aligned": False}
    }
    assert call["arguments"]["n"] == 64
    assert census.launches == {("tests.adapter.kernels.add_kernel", "n<=64"): 2}
    ((tier, calls, ns),) = entry.cold
    assert (tier, calls) == ("compile", 1)
    assert ns > 0
    assert entry.buckets == ("n<=64",)
    assert entry.launched


def adds_up(result: Prewarmed) -> bool:
    return result.planned == result.replayed + result.there_before + result.variants_skipped + result.undone


def test_what_ctrl_c_left_undone_is_counted(instrumented: Runtime, add: Any, forget: Callable[..., Path]) -> None:
    for n in (64, 63, 1):
        add(X, X, X, n)
        add(X, X, X, n, BLOCK=64)
    census = recorded(instrumented)
    folder = forget(add.kernel)

    def ctrl_c(done: int, *_: object) -> None:
        if done == 2:
            raise KeyboardInterrupt

    result = tritonprobe.prewarm(census, threads=1, progress=ctrl_c)
    assert (result.planned, result.stopped, result.variants_skipped) == (6, "interrupt", 0)
    assert 2 <= result.replayed < 6  # what was under way ends
    assert result.replayed == cubins_in(folder)
    assert adds_up(result)
    assert f"; 0 skipped, {6 - result.replayed} not done" in result.summary()

    result = instrumented.prewarm(census, timeout=1e-9)
    assert (result.stopped, result.undone) == ("deadline", 6)
    assert adds_up(result)

    result = tritonprobe.prewarm(census)
    assert (result.planned, result.undone, "not done" in result.summary()) == (6, 0, False)
    assert adds_up(result)


def test_each_variant_of_a_binary_that_cannot_be_replayed_is_counted(
    instrumented: Runtime, add: Any, forget: Callable[..., Path]
) -> None:
    """Two machines met it, whose GPUs have names of their own."""
    add(X, X, X, 64)
    census = recorded(instrumented)
    ((_, entry),) = census.entries.items()
    here = census.environments[entry.environment]
    elsewhere = replace(here, device="cuda:90 (another)")
    wrong = [replace(entry, hash="00" * 32, environment=place.id) for place in (here, elsewhere)]
    forget(add.kernel)
    result = tritonprobe.prewarm(Census.of([here, elsewhere], wrong))
    assert (result.planned, result.variants_skipped) == (2, 2)
    assert all("compiled to " in skipped.because for skipped in result.skipped)
    assert adds_up(result)
