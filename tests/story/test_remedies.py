"""Remedies weigh the advice for each reason by the cold seconds it speaks of."""

from __future__ import annotations

import pytest

from tests.story.stories import MATMUL, SOFTMAX, History, cold_call
from tritonprobe.model import Tuning
from tritonprobe.shapes.advice import advice
from tritonprobe.story.remedies import KEEP_CACHE, KEEP_WINNERS, remedies
from tritonprobe.story.telling import tell


def test_the_dearest_remedy_comes_first_and_names_its_kernels() -> None:
    found = remedies(
        [
            cold_call(MATMUL, seconds=1.0, reasons=("new kernel",), tier="disk"),
            cold_call(SOFTMAX, seconds=2.0, reasons=("new kernel",), tier="disk"),
            cold_call(MATMUL, seconds=0.5, reasons=("n: %16 -> ==1",), tier="disk"),
        ],
        top=10,
        ready=False,
    )
    assert [(r.text, r.seconds, r.kernels) for r in found] == [
        (advice("new kernel"), 3.0, (MATMUL, SOFTMAX)),
        (advice("n: %16 -> ==1"), 0.5, (MATMUL,)),
    ]


def test_compiles_advise_keeping_the_cache() -> None:
    (only,) = remedies([cold_call(seconds=2.0, reasons=())], top=10, ready=False)
    assert (only.text, only.seconds) == (KEEP_CACHE, 2.0)


@pytest.mark.parametrize(("ready", "counted"), [(True, 2.0), (False, 5.0)])
def test_what_came_before_ready_is_no_ground_for_prewarming(ready: bool, counted: float) -> None:
    calls = [cold_call(start=-9.0, seconds=3.0), cold_call(start=1.0, seconds=2.0)]
    assert {r.text: r.seconds for r in remedies(calls, top=10, ready=ready)} == {
        KEEP_CACHE: 5.0,
        advice("new kernel"): counted,
    }


def test_a_process_that_warmed_its_kernel_before_ready_is_not_told_to_prewarm_it() -> None:
    story = tell(History(cold_calls=[cold_call(start=-4.0, tier="disk")]))
    assert story.remedies == ()


def test_no_remedy_saves_what_every_process_pays() -> None:
    phases = (("process_init", 500_000_000), ("cubin", 1_250_000_000), ("module_load", 250_000_000))
    call = cold_call(seconds=2.0, reasons=("n: %16 -> ==1",), phases=phases)
    advised, kept = remedies([call], top=10, ready=False)
    assert (kept.text, kept.seconds) == (KEEP_CACHE, 1.25)
    assert (advised.text, advised.seconds) == (advice("n: %16 -> ==1"), 1.5)


def test_a_call_that_raised_is_to_be_mended_and_nothing_else_helps_it() -> None:
    tuning = Tuning(key="k", trials=(), pruned=0, winner=None, from_disk=False, wall_ns=1)
    phases = (("process_init", 500_000_000), ("ttir", 1_500_000_000))
    failed = cold_call(seconds=2.0, error="CompilationError", tuning=tuning, phases=phases)
    (only,) = remedies([failed], top=10, ready=True)
    assert only.text.startswith("Mend what raised CompilationError, or keep such calls from the kernel")
    assert (only.seconds, only.kernels) == (1.5, (MATMUL,))


def test_tuning_advises_keeping_the_winners_unless_they_came_from_disk() -> None:
    def call(from_disk: bool):
        tuning = Tuning(key="k", trials=(), pruned=0, winner="BLOCK: 64", from_disk=from_disk, wall_ns=1)
        return cold_call(reasons=(), tier="disk", tuning=tuning)

    assert [r.text for r in remedies([call(from_disk=False)], top=10, ready=False)] == [KEEP_WINNERS]
    assert remedies([call(from_disk=True)], top=10, ready=False) == ()


def test_kept_winners_save_the_tuning_and_not_what_the_call_did_beside_it() -> None:
    tuning = Tuning(key="k", trials=(), pruned=0, winner="BLOCK: 64", from_disk=False, wall_ns=1_200_000_000)
    (only,) = remedies([cold_call(seconds=2.0, reasons=(), tier="disk", tuning=tuning)], top=10, ready=False)
    assert (only.text, only.seconds) == (KEEP_WINNERS, 1.2)


def test_only_the_dearest_are_named() -> None:
    calls = [
        cold_call(seconds=n, reasons=(f"constexpr S: 1 -> {n}", f"option o{n}: 1 -> 2"), tier="disk") for n in (1, 2, 3)
    ]
    assert [r.seconds for r in remedies(calls, top=2, ready=False)] == [6.0, 3.0]
