"""Remedies weigh the advice for each reason by the cold seconds it speaks of."""

from __future__ import annotations

from tests.story.stories import MATMUL, SOFTMAX, cold_call
from tritonprobe.model import Tuning
from tritonprobe.shapes.advice import advice
from tritonprobe.story.remedies import KEEP_CACHE, KEEP_WINNERS, remedies


def test_the_dearest_remedy_comes_first_and_names_its_kernels() -> None:
    found = remedies(
        [
            cold_call(MATMUL, seconds=1.0, reasons=("new kernel",), tier="disk"),
            cold_call(SOFTMAX, seconds=2.0, reasons=("new kernel",), tier="disk"),
            cold_call(MATMUL, seconds=0.5, reasons=("n: %16 -> ==1",), tier="disk"),
        ],
        top=10,
    )
    assert [(r.text, r.seconds, r.kernels) for r in found] == [
        (advice("new kernel"), 3.0, (MATMUL, SOFTMAX)),
        (advice("n: %16 -> ==1"), 0.5, (MATMUL,)),
    ]


def test_compiles_advise_keeping_the_cache() -> None:
    (only,) = remedies([cold_call(seconds=2.0, reasons=())], top=10)
    assert (only.text, only.seconds) == (KEEP_CACHE, 2.0)


def test_a_kept_cache_does_not_save_what_every_process_pays() -> None:
    phases = (("process_init", 500_000_000), ("cubin", 1_250_000_000), ("module_load", 250_000_000))
    kept, advised = remedies([cold_call(seconds=2.0, reasons=("n: %16 -> ==1",), phases=phases)], top=10)[::-1]
    assert (kept.text, kept.seconds) == (KEEP_CACHE, 1.25)
    assert (advised.text, advised.seconds) == (advice("n: %16 -> ==1"), 2.0)


def test_tuning_advises_keeping_the_winners_unless_they_came_from_disk() -> None:
    def call(from_disk: bool):
        tuning = Tuning(key="k", trials=(), pruned=0, winner="BLOCK: 64", from_disk=from_disk, wall_ns=1)
        return cold_call(reasons=(), tier="disk", tuning=tuning)

    assert [r.text for r in remedies([call(from_disk=False)], top=10)] == [KEEP_WINNERS]
    assert remedies([call(from_disk=True)], top=10) == ()


def test_only_the_dearest_are_named() -> None:
    calls = [
        cold_call(seconds=n, reasons=(f"constexpr S: 1 -> {n}", f"option o{n}: 1 -> 2"), tier="disk") for n in (1, 2, 3)
    ]
    assert [r.seconds for r in remedies(calls, top=2)] == [6.0, 3.0]
