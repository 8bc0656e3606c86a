"""Tells a story: reads a runtime's ledger, cold calls and finished requests, and computes what a reader needs.

Totals come from the ledger, which forgets nothing; single calls and requests come from the runtime's bounded history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from tritonprobe.ledger import HistogramSample, Metric, Readable, Sample, schema
from tritonprobe.model import OTHER, PHASES, TIERS, ColdCall, RequestCost
from tritonprobe.story import scope
from tritonprobe.story.remedies import remedies
from tritonprobe.story.view import (
    DearCall,
    OpPaths,
    Pair,
    PhaseTotal,
    SlowRequest,
    Story,
    TierTotal,
)
from tritonprobe.traffic.latency import Percentiles, nearest_rank

TOP = 20
"""How many cold calls and remedies a story names."""
PAIRS = 500
"""How many pairs of kernel and bucket a story names; those beyond are summed."""
_NS = 1e9


class Source(Protocol):
    """What a story is told from; `tritonprobe.runtime.Runtime` is one."""

    @property
    def device(self) -> str: ...
    @property
    def ledger(self) -> Readable: ...
    @property
    def cold_calls(self) -> Iterable[ColdCall]: ...
    @property
    def requests(self) -> Iterable[RequestCost]: ...
    @property
    def ready_unix_ns(self) -> int | None: ...


def tell(source: Source, top: int = TOP, pairs: int = PAIRS) -> Story:
    """The story of `source` so far. Requests before ready were warm-ups, and are in no percentile."""
    calls = list(source.cold_calls)
    ready = source.ready_unix_ns
    requests = [r for r in source.requests if ready is None or r.unix_ns >= ready]
    sums = _Sums(source.ledger)
    tiers = _tiers(sums)
    named, rest = _pairs(sums, pairs)
    ops = _ops(sums)
    return Story(
        device=source.device,
        version=sums.label(schema.INFO, "version"),
        triton=sums.label(schema.INFO, "triton"),
        cold_calls=sum(t.calls for t in tiers),
        cold_seconds=sum(t.seconds for t in tiers),
        after_ready=None if ready is None else int(sums.total(schema.AFTER_READY)),
        tiers=tiers,
        phases=_phases(sums),
        ttft=Percentiles.of(r.ttft_ns / _NS for r in requests if r.ttft_ns is not None),
        tpot=Percentiles.of(r.tpot_ns / _NS for r in requests if r.tpot_ns is not None),
        slowest=_slowest(requests),
        dearest=_dearest(calls, requests, ready, top),
        pairs=named,
        other_pairs=rest,
        ops=ops,
        remedies=remedies(calls, top, ready is not None),
        measured=scope.measured(source.device),
        absent=scope.absent(source.device, bool(ops)),
    )


class _Sums:
    """The ledger's families, summed over the labels that nobody asked for."""

    def __init__(self, ledger: Readable) -> None:
        self._samples = {family.metric.name: list(family.samples) for family in ledger.collect()}

    def by(self, metric: Metric, *names: str) -> dict[tuple[str, ...], float]:
        """Values (a histogram's sums) by the labels `names`."""
        found: dict[tuple[str, ...], float] = defaultdict(float)
        places = [metric.labels.index(name) for name in names]
        for sample in self._samples.get(metric.name, ()):
            value = sample.value if isinstance(sample, Sample) else sample.sum
            found[tuple(sample.labels[place] for place in places)] += value
        return found

    def total(self, metric: Metric) -> float:
        return sum(self.by(metric).values())

    def observations(self, metric: Metric) -> dict[tuple[str, ...], int]:
        """How many observations each series of a histogram has."""
        samples = self._samples.get(metric.name, ())
        return {s.labels: int(sum(s.counts)) for s in samples if isinstance(s, HistogramSample)}

    def label(self, metric: Metric, name: str) -> str | None:
        """The label `name` of a metric with one series."""
        place = metric.labels.index(name)
        return next((sample.labels[place] for sample in self._samples.get(metric.name, ())), None)


def _tiers(sums: _Sums) -> tuple[TierTotal, ...]:
    calls = sums.observations(schema.COLD_CALL_SECONDS)
    seconds = sums.by(schema.COLD_CALL_SECONDS, "tier")
    lookups = sums.by(schema.LOOKUPS, "tier")
    raised = sums.by(schema.COLD_RAISED, "tier")
    return tuple(TierTotal(t, calls.get((t,), 0), seconds[(t,)], int(lookups[(t,)]), int(raised[(t,)])) for t in TIERS)


def _phases(sums: _Sums) -> tuple[PhaseTotal, ...]:
    """Phases that took time, in the model's order; a stage that the model doesn't know comes last."""
    seconds = sums.by(schema.COLD_SECONDS, "phase")
    order = {phase: place for place, phase in enumerate(PHASES)}
    taken = sorted((order.get(phase, len(order)), phase) for (phase,), value in seconds.items() if value > 0)
    return tuple(PhaseTotal(phase, seconds[(phase,)]) for _, phase in taken)


def _slowest(requests: Sequence[RequestCost]) -> SlowRequest | None:
    answered = sorted(r.ttft_ns for r in requests if r.ttft_ns is not None)
    if not answered:
        return None
    ttft_ns = nearest_rank(answered, 99)
    request = next(r for r in requests if r.ttft_ns == ttft_ns)
    return SlowRequest(request.id, ttft_ns / _NS, request.before.in_batch_ns / _NS, request.before.queued_ns / _NS)


def _dearest(
    calls: Sequence[ColdCall], requests: Sequence[RequestCost], ready_unix_ns: int | None, top: int
) -> tuple[DearCall, ...]:
    origin = min((c.unix_ns for c in calls), default=0) if ready_unix_ns is None else ready_unix_ns
    return tuple(
        DearCall(
            when=(call.unix_ns - origin) / _NS,
            kernel=call.kernel,
            bucket=call.bucket,
            tier=call.tier,
            mode=call.mode,
            seconds=call.wall_ns / _NS,
            waiting=None if call.background else _alive(requests, call),
            because=call.reasons,
            error=call.error,
        )
        for call in sorted(calls, key=lambda c: c.wall_ns, reverse=True)[:top]
    )


def _alive(requests: Iterable[RequestCost], call: ColdCall) -> int:
    return sum(r.start_ns < call.end_ns and r.end_ns > call.start_ns for r in requests)


def _pairs(sums: _Sums, top: int) -> tuple[tuple[Pair, ...], Pair | None]:
    """The pairs that missed memory most often come first, then the most launched; the rest summed."""
    launches = sums.by(schema.LAUNCHES, "kernel", "bucket")
    lookups = sums.by(schema.LOOKUPS, "kernel", "bucket", "tier")
    every = sorted(
        (
            Pair(k, b, int(launches[(k, b)]), *(int(lookups[(k, b, tier)]) for tier in TIERS))
            for k, b in {*launches, *((k, b) for k, b, _ in lookups)}
        ),
        key=lambda pair: (-pair.missed, -pair.launches, pair.kernel, pair.bucket),
    )
    rest = every[top:]
    if not rest:
        return tuple(every), None
    return tuple(every[:top]), Pair(
        OTHER,
        OTHER,
        sum(p.launches for p in rest),
        sum(p.memory for p in rest),
        sum(p.disk for p in rest),
        sum(p.remote for p in rest),
        sum(p.compile for p in rest),
    )


def _ops(sums: _Sums) -> tuple[OpPaths, ...]:
    paths = sums.by(schema.OP_CALLS, "op", "path")
    reasons = sorted(sums.by(schema.FALLBACKS, "op", "reason").items())
    return tuple(
        OpPaths(
            op,
            int(paths[(op, "triton")]),
            int(paths[(op, "fallback")]),
            tuple((reason, int(n)) for (owner, reason), n in reasons if owner == op and n > 0),
        )
        for op in sorted({op for op, _ in paths})
    )
