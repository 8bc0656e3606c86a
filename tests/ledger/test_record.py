"""Events become series: which event counts where, and what does not count."""

from __future__ import annotations

from typing import Any

import pytest

from tritonprobe.bus import Bus
from tritonprobe.ledger import Exemplar, HistogramSample, MemoryLedger, Recorder, Sample, schema
from tritonprobe.model import ColdCall, Exposure, LaunchError, Lookup, Parts, RequestCost, Trial, Tuning
from tritonprobe.settings import Settings

MS = 1_000_000


class Recorded:
    """A ledger behind a bus, as a runtime has it."""

    def __init__(self, **settings: Any) -> None:
        self.ready = False
        self.ledger = MemoryLedger()
        self.bus = Bus()
        self.errors: list[str] = []
        recorder = Recorder(self.ledger, Settings(**settings), lambda: self.ready, self.errors.append)
        self.bus.subscribe(recorder, keep=True)

    def values(self, metric: schema.Metric) -> dict[tuple[str, ...], float]:
        samples = [s for family in self.ledger.collect() if family.metric is metric for s in family.samples]
        return {s.labels: s.value for s in samples if isinstance(s, Sample) and s.value}

    def observed(self, metric: schema.Metric) -> dict[tuple[str, ...], tuple[float, float]]:
        """(count, sum) of each series that has observations."""
        samples = [s for family in self.ledger.collect() if family.metric is metric for s in family.samples]
        histograms = [s for s in samples if isinstance(s, HistogramSample)]
        return {s.labels: (sum(s.counts), s.sum) for s in histograms if sum(s.counts)}


def cold_call(**changes: Any) -> ColdCall:
    """40 ms of compiling `softmax` for the bucket N=1024."""
    defaults: dict[str, Any] = {
        "kernel": "softmax",
        "bucket": "N=1024",
        "tier": "compile",
        "start_ns": 0,
        "end_ns": 40 * MS,
        "unix_ns": 0,
        "phases": (("frontend", 10 * MS), ("ptx", 25 * MS), ("other", 5 * MS)),
        "lookups": (Lookup("softmax", "N=1024", "compile"),),
        "reasons": ("new kernel",),
    }
    return ColdCall(**{**defaults, **changes})


def request(**changes: Any) -> RequestCost:
    """Two seconds to the first token, then one a second: four in all."""
    defaults: dict[str, Any] = {
        "id": "r1",
        "model": "llama",
        "start_ns": 0,
        "first_token_ns": 2000 * MS,
        "end_ns": 5000 * MS,
        "unix_ns": 0,
        "tokens": 4,
    }
    return RequestCost(**{**defaults, **changes})


def test_phases_add_up_to_the_wall_time() -> None:
    recorded = Recorded(rank="3")
    recorded.bus.publish(cold_call())
    recorded.bus.publish(cold_call())
    seconds = recorded.values(schema.COLD_SECONDS)
    assert seconds == {
        ("softmax", "frontend", "3"): 0.02,
        ("softmax", "ptx", "3"): 0.05,
        ("softmax", "other", "3"): 0.01,
    }
    assert recorded.observed(schema.COLD_CALL_SECONDS) == {("compile",): (2, sum(seconds.values()))}


def test_cold_calls_that_raised_are_counted_apart_as_well() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call())
    for _ in range(2):
        recorded.bus.publish(cold_call(error="CompilationError", lookups=()))
    recorded.bus.publish(cold_call(error="RuntimeError", tier="disk"))
    assert recorded.values(schema.COLD_RAISED) == {("compile",): 2, ("disk",): 1}
    assert {labels: n for labels, (n, _) in recorded.observed(schema.COLD_CALL_SECONDS).items()} == {
        ("compile",): 3,
        ("disk",): 1,
    }


def test_a_phase_without_time_makes_no_series() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call(phases=(("frontend", 40 * MS), ("other", 0))))
    assert recorded.values(schema.COLD_SECONDS) == {("softmax", "frontend", "0"): 0.04}


def test_lookups_count_where_each_was_made_and_memory_is_left_to_reading() -> None:
    recorded = Recorded()
    lookups = (
        Lookup("softmax", "N=1024", "compile", 3),
        Lookup("softmax", "N=1024", "memory", 9),
        Lookup("fill", "all", "disk", 1),
    )
    recorded.bus.publish(cold_call(lookups=lookups))
    assert recorded.values(schema.LOOKUPS) == {
        ("softmax", "N=1024", "compile"): 3,
        ("fill", "all", "disk"): 1,
    }


def test_each_change_that_cost_a_compile_is_a_cause() -> None:
    recorded = Recorded()
    reasons = (
        "n: %16 -> ==1",
        "x: fp16 -> bf16",
        "constexpr S: 1024 -> 1025",
        "option num_warps: 4 -> 8",
        "and 2 more",
    )
    recorded.bus.publish(cold_call(reasons=reasons))
    recorded.bus.publish(cold_call(reasons=("s[0]: %16 -> ==1", "s[1]: %16 -> ==1")))
    causes = {cause: count for (_, cause), count in recorded.values(schema.RECOMPILES).items()}
    assert causes == {"n": 1, "x": 1, "S": 1, "option num_warps": 1, "s": 1}


def test_what_changed_nothing_or_compiled_nothing_is_no_recompile() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call(reasons=("new kernel",)))
    recorded.bus.publish(cold_call(reasons=("same variant, other in-memory key",)))
    recorded.bus.publish(cold_call(tier="disk", reasons=("n: %16 -> ==1",)))
    assert recorded.values(schema.RECOMPILES) == {}


def test_a_tuning_session_counts_its_configurations_by_outcome() -> None:
    recorded = Recorded()
    tuning = Tuning(
        key="M=1024",
        trials=(
            Trial("BLOCK: 64", "ok", 1e-5, 300 * MS),
            Trial("BLOCK: 128", "ok", 2e-5, 200 * MS),
            Trial("BLOCK: 512", "out_of_resources", None, 100 * MS),
        ),
        pruned=2,
        winner="BLOCK: 64",
        from_disk=False,
        wall_ns=650 * MS,
    )
    recorded.bus.publish(cold_call(tuning=tuning))
    assert recorded.values(schema.AUTOTUNE_CONFIGS) == {("ok",): 2, ("out_of_resources",): 1, ("pruned",): 2}
    assert recorded.values(schema.AUTOTUNE_SECONDS) == {("softmax",): 0.65}


def test_a_cold_call_after_ready_is_an_incident_unless_it_ran_in_the_background() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call())
    recorded.bus.publish(cold_call(kind="prewarm", background=True))
    recorded.ready = True
    recorded.bus.publish(cold_call(after_ready=True, background=True))
    recorded.bus.publish(cold_call(kind="prewarm", after_ready=True, background=True))
    assert recorded.values(schema.AFTER_READY) == {}
    recorded.bus.publish(cold_call(after_ready=True, tier="disk"))
    assert recorded.values(schema.AFTER_READY) == {("disk",): 1}
    assert recorded.values(schema.AFTER_READY_BY_KERNEL) == {("softmax", "N=1024", "disk"): 1}
    assert recorded.values(schema.BEFORE_READY) == {("start",): 1, ("prewarm",): 1}


def test_the_start_is_frozen_at_ready() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call())
    start = {("frontend",): 0.01, ("ptx",): 0.025, ("other",): 0.005}
    assert recorded.values(schema.STARTUP_COLD) == start
    recorded.ready = True
    recorded.bus.publish(cold_call())  # began before ready, ended after
    recorded.bus.publish(cold_call(after_ready=True))
    assert recorded.values(schema.STARTUP_COLD) == start


def test_a_requests_times_and_the_stall_it_stood_behind() -> None:
    recorded = Recorded()
    recorded.bus.publish(request(before=Exposure(500 * MS, 1000 * MS), after=Exposure(0, 250 * MS)))
    assert recorded.observed(schema.TTFT) == {("llama",): (1, 2.0)}
    assert recorded.observed(schema.TPOT) == {("llama",): (1, 1.0)}
    assert recorded.observed(schema.EXPOSURE) == {
        ("before_first_token", "in_batch"): (1, 0.5),
        ("before_first_token", "queued"): (1, 1.0),
        ("after_first_token", "in_batch"): (1, 0.0),  # measured, and nothing
        ("after_first_token", "queued"): (1, 0.25),
    }


TRACE = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def test_a_traced_event_leaves_its_trace_on_its_times() -> None:
    recorded = Recorded()
    recorded.bus.publish(cold_call(trace=TRACE))
    recorded.bus.publish(request(trace=TRACE))
    recorded.bus.publish(request())
    exemplars = {
        family.metric.name: (s.traced.value, s.traced.exemplar)
        for family in recorded.ledger.collect()
        for s in family.samples
        if isinstance(s, HistogramSample) and s.traced is not None
    }
    assert exemplars == {
        "cold_call_seconds": (0.04, Exemplar(*TRACE)),
        "time_to_first_token_seconds": (2.0, Exemplar(*TRACE)),
        "time_per_output_token_seconds": (1.0, Exemplar(*TRACE)),
    }


def test_what_a_request_never_had_is_not_observed() -> None:
    recorded = Recorded()
    recorded.bus.publish(request(first_token_ns=None, tokens=0, error="Timeout"))
    assert recorded.observed(schema.TTFT) == {}
    assert recorded.observed(schema.TPOT) == {}
    assert set(recorded.observed(schema.EXPOSURE)) == {
        ("before_first_token", "in_batch"),
        ("before_first_token", "queued"),
    }
    recorded.bus.publish(request(tokens=1))
    assert recorded.observed(schema.TTFT) == {("llama",): (1, 2.0)}
    assert recorded.observed(schema.TPOT) == {}


def test_only_launches_that_raised_are_launch_errors() -> None:
    recorded = Recorded()
    for mode in ("launch", "trial", "warmup"):
        recorded.bus.publish(LaunchError("softmax", "OutOfResources", mode))
    assert recorded.values(schema.LAUNCH_ERRORS) == {("softmax", "OutOfResources"): 1}


def test_a_part_that_cannot_be_counted_costs_no_other_part() -> None:
    """A tuner whose wall time runs backwards, in a cold call after ready; the parts of the next event count as well."""
    recorded = Recorded()
    recorded.ready = True
    broken = Tuning(key="", trials=(), pruned=0, winner=None, from_disk=False, wall_ns=-1)
    for _ in range(5):
        recorded.bus.publish(cold_call(tuning=broken, after_ready=True))
    assert recorded.errors == ["record"] * 5
    assert recorded.observed(schema.COLD_CALL_SECONDS)["compile",][0] == 5
    assert recorded.values(schema.AFTER_READY) == {("compile",): 5}
    assert recorded.values(schema.AFTER_READY_BY_KERNEL) == {("softmax", "N=1024", "compile"): 5}
    assert recorded.values(schema.LOOKUPS)["softmax", "N=1024", "compile"] == 5
    assert recorded.values(schema.COLD_SECONDS)["softmax", "ptx", "0"] == pytest.approx(0.125)


def test_a_request_that_is_half_wrong_is_half_counted() -> None:
    recorded = Recorded()
    recorded.bus.publish(request(first_token_ns=-1, before=Exposure(queued_ns=7)))
    assert recorded.errors == ["record"]
    assert recorded.observed(schema.TTFT) == {}
    assert recorded.observed(schema.EXPOSURE)["before_first_token", "queued"] == (1, 7e-9)


def test_a_tuner_that_adds_configurations_has_pruned_none() -> None:
    recorded = Recorded()
    tuning = Tuning(key="", trials=(), pruned=-3, winner=None, from_disk=False, wall_ns=5)
    recorded.bus.publish(cold_call(tuning=tuning))
    assert recorded.errors == []
    assert recorded.values(schema.AUTOTUNE_CONFIGS) == {}


def test_a_missed_objective_says_whether_the_stall_alone_was_to_blame() -> None:
    recorded = Recorded(ttft_slos=[0.5, 1.5])
    families = {family.metric for family in recorded.ledger.collect()}
    assert schema.SLO_MISSES in families  # at 0 from the start
    recorded.bus.publish(request(first_token_ns=400 * MS))  # meets both
    recorded.bus.publish(request(before=Exposure(in_batch_ns=400 * MS, queued_ns=100 * MS)))  # 2 s, of them 0.5 stalled
    recorded.bus.publish(request(first_token_ns=None, end_ns=1000 * MS))  # its client gave up
    assert recorded.values(schema.SLO_MISSES) == {("0.5", "false"): 2, ("1.5", "true"): 1}


def test_without_objectives_there_is_no_family() -> None:
    recorded = Recorded()
    recorded.bus.publish(request())
    assert schema.SLO_MISSES not in {family.metric for family in recorded.ledger.collect()}


def test_a_life_in_parts_is_five_observations() -> None:
    recorded = Recorded()
    recorded.bus.publish(request(parts=Parts(1000 * MS, 2000 * MS, 500 * MS, 250 * MS, 1250 * MS)))
    recorded.bus.publish(request())  # nobody knows its steps
    assert recorded.observed(schema.REQUEST_PARTS) == {
        ("queue",): (1, 1.0),
        ("execution",): (1, 2.0),
        ("exposure",): (1, 0.5),
        ("fallback",): (1, 0.25),
        ("remainder",): (1, 1.25),
    }


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (cold_call(), "a"),  # whoever waited longest
        (cold_call(trace=("c" * 32, "d" * 16)), "c"),  # the span on its own thread comes first
        (cold_call(background=True), None),  # nobody waited
        (cold_call(end_ns=5), None),  # they came later
    ],
)
def test_a_cold_calls_exemplar_is_the_trace_that_stood_behind_it(call: ColdCall, expected: str | None) -> None:
    ledger, bus = MemoryLedger(), Bus()
    traces = [("a" * 32, "1" * 16), ("b" * 32, "2" * 16)]

    def waiting(before_ns: int) -> list[tuple[str, str]]:
        return traces if before_ns > 5 else []

    bus.subscribe(Recorder(ledger, Settings(), lambda: True, waiting=waiting))
    bus.publish(call)
    (histogram,) = [s for f in ledger.collect() if f.metric is schema.COLD_CALL_SECONDS for s in f.samples if _some(s)]
    assert isinstance(histogram, HistogramSample)
    found = None if histogram.traced is None else histogram.traced.exemplar.trace_id
    assert found == (None if expected is None else expected * 32)


def _some(sample: Sample | HistogramSample) -> bool:
    return isinstance(sample, HistogramSample) and sum(sample.counts) > 0
