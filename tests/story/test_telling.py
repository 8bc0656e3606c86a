"""A story is computed from the ledger's totals and the history of single calls and requests."""

from __future__ import annotations

import pytest

from tests.story.stories import MATMUL, SOFTMAX, History, busy, cold_call, request
from tritonprobe.ledger import MemoryLedger, schema
from tritonprobe.story import Pair, SlowRequest, tell


def test_totals_come_from_the_ledger() -> None:
    story = tell(busy())
    assert (story.cold_calls, story.after_ready) == (2, 2)
    assert story.cold_seconds == pytest.approx(3.03)
    by_tier = {t.tier: (t.calls, t.seconds, t.lookups) for t in story.tiers}
    assert by_tier == {
        "memory": (0, 0.0, 79),
        "disk": (1, pytest.approx(0.03), 1),
        "remote": (0, 0.0, 0),
        "compile": (1, pytest.approx(3.0), 1),
    }
    assert (story.version, story.triton) == ("0.1", "3.6.0")


def test_cold_calls_that_raised_are_told_apart() -> None:
    history = busy()
    history.ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.5)
    history.ledger.add(schema.COLD_RAISED, ("compile",))
    found = {t.tier: (t.calls, t.raised) for t in tell(history).tiers}
    assert found == {"memory": (0, 0), "disk": (1, 0), "remote": (0, 0), "compile": (2, 1)}


def test_phases_stand_in_the_order_of_the_model_and_unknown_stages_last() -> None:
    assert [(p.phase, p.seconds) for p in tell(busy()).phases] == [
        ("frontend", 1.0),
        ("cubin", 2.0),
        ("cache_read", 0.01),
        ("brand_new_stage", 0.02),
    ]


def test_the_dearest_cold_call_comes_first_with_those_who_waited_and_why() -> None:
    matmul, softmax = tell(busy()).dearest
    assert (matmul.kernel, matmul.tier, matmul.when, matmul.seconds) == (MATMUL, "compile", 0.1, 3.0)
    assert matmul.because == ("n: %16 -> ==1", "constexpr S: 1024 -> 1025")
    assert matmul.waiting == 2
    # Both had their first token when softmax was loaded; the second one's last token came at 3.24 s.
    assert (softmax.kernel, softmax.waiting) == (SOFTMAX, 1)


def test_a_request_that_ended_when_a_call_began_did_not_wait_for_it() -> None:
    call = cold_call(start=1.0, seconds=1.0)
    before, after, during = request(start=0, end=1.0), request(start=2.0), request(start=1.5, end=1.6)
    assert tell(History(cold_calls=[call], requests=[before, after, during])).dearest[0].waiting == 1


def test_nobody_waits_for_a_background_thread() -> None:
    calls = [cold_call(start=0.0, background=True)]
    story = tell(History(cold_calls=calls, requests=[request(start=0.0, ttft=5.0)]))
    assert story.dearest[0].waiting is None
    assert story.remedies == ()


def test_calls_before_ready_have_a_negative_time() -> None:
    assert tell(History(cold_calls=[cold_call(start=-4.0)])).dearest[0].when == -4.0


def test_without_ready_times_count_from_the_first_cold_call() -> None:
    story = tell(History(cold_calls=[cold_call(start=7.0, seconds=2), cold_call(start=5.0)], ready_unix_ns=None))
    assert [c.when for c in story.dearest] == [2.0, 0.0]
    assert story.after_ready is None


def test_the_p99_is_a_request_that_happened() -> None:
    requests = [request(f"r{i}", ttft=i / 1000) for i in range(1, 201)]
    story = tell(History(requests=requests))
    assert story.slowest is not None
    assert story.ttft is not None
    assert (story.slowest.id, story.slowest.ttft, story.ttft.p99) == ("r198", 0.198, 0.198)
    assert story.slowest.sentence == "the request at P99: TTFT 198 ms, none of it in a stall"


def test_the_sentence_splits_the_stall_by_whose_batch_it_was() -> None:
    slowest = tell(busy()).slowest
    assert slowest is not None
    assert slowest.sentence == (
        "the request at P99: TTFT 3.1 s, of which up to 3.0 s in a stall (3.0 its own batch, 0.0 queued)"
    )


@pytest.mark.parametrize(
    ("ttft", "in_batch", "queued", "said"),
    [
        (4.1, 0.94, 3.06, "TTFT 4.1 s, of which up to 4.0 s in a stall (0.9 its own batch, 3.1 queued)"),
        (6.3, 0.74, 5.34, "TTFT 6.3 s, of which up to 6.1 s in a stall (0.7 its own batch, 5.4 queued)"),
        (0.25, 0.2, 0.0, "TTFT 250 ms, of which up to 200 ms in a stall (200 its own batch, 0 queued)"),
        (0.25, 0.0, 0.0002, "TTFT 250 ms, none of it in a stall"),
        (0.0002, 0.0, 0.0, "TTFT 0.2 ms, none of it in a stall"),  # as the table of percentiles shows it
        (0.0052, 0.0012, 0.0031, "TTFT 5.2 ms, of which up to 4.3 ms in a stall (1.2 its own batch, 3.1 queued)"),
        (120.0, 100.0, 15.0, "TTFT 120 s, of which up to 115 s in a stall (100 its own batch, 15 queued)"),
    ],
)
def test_the_parts_of_a_stall_add_up_as_printed(ttft: float, in_batch: float, queued: float, said: str) -> None:
    assert SlowRequest("r", ttft, in_batch, queued).sentence == f"the request at P99: {said}"


def test_requests_before_ready_are_warm_ups() -> None:
    story = tell(History(requests=[request("warm-up", start=-9.0, ttft=8.0), request("user", ttft=0.5)]))
    assert story.ttft is not None
    assert (story.ttft.n, story.ttft.max) == (1, 0.5)


def test_a_request_without_a_token_has_no_ttft_and_one_token_has_no_tpot() -> None:
    story = tell(History(requests=[request(ttft=None), request(ttft=0.5, tokens=1)]))
    assert story.ttft is not None
    assert (story.ttft.n, story.ttft.p50, story.tpot) == (1, 0.5, None)


def test_pairs_that_missed_memory_come_first_and_the_rest_are_summed() -> None:
    ledger = MemoryLedger()
    for kernel, launches, compiled in (("hot", 900, 0), ("warm", 100, 1), ("cold", 2, 2), ("never", 0, 0)):
        ledger.add(schema.LAUNCHES, (kernel, "all"), launches)
        ledger.add(schema.LOOKUPS, (kernel, "all", "compile"), compiled)
        ledger.add(schema.LOOKUPS, (kernel, "all", "memory"), max(0, launches - compiled))
    story = tell(History(ledger=ledger), pairs=2)
    assert [p.kernel for p in story.pairs] == ["cold", "warm"]
    assert story.other_pairs == Pair("other", "other", launches=900, memory=900, disk=0, remote=0, compile=0)


def test_ops_count_their_paths_and_the_reasons_of_their_fallbacks() -> None:
    (op,) = tell(busy()).ops
    assert (op.op, op.triton, op.fallback, op.reasons) == ("shop.matmul", 40, 2, (("unsupported_dtype", 2),))


def test_nothing_happened_is_a_story_too() -> None:
    story = tell(History())
    assert (story.cold_calls, story.ttft, story.slowest, story.dearest, story.other_pairs) == (
        0,
        None,
        None,
        (),
        None,
    )
    assert story.triton is None


def test_without_a_gpu_only_ops_have_values() -> None:
    alone = History(device="compile-only:cuda:90")
    assert "launches do nothing here, and kernels write nothing" in tell(alone).absent
    alone.ledger.add(schema.OP_CALLS, ("op", "all", "triton"))
    assert "launches do nothing here, and the values of ops are their fallbacks'" in tell(alone).absent


@pytest.mark.parametrize(
    ("device", "absent"),
    [
        ("compile-only:cuda:90", "GPU times"),
        ("cuda:90 (NVIDIA H200)", "GPU time by kernel"),
        ("interpreter", "compiles and caches"),
        ("none", "no device"),
    ],
)
def test_each_device_says_what_it_cannot_measure(device: str, absent: str) -> None:
    story = tell(History(device=device))
    assert absent in " ".join(story.absent)
    assert story.measured
