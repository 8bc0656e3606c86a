"""What each span says: an event's facts under the names of `conventions`. Plain data; knows no OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tritonprobe.export.otel import conventions as names
from tritonprobe.model import ColdCall, Exposure, PrewarmEnded, RequestCost, Tuning

_NS = 1e9

Value = bool | int | float | str | Sequence[str]


def of_cold_call(call: ColdCall, rank: str, waiting: int) -> dict[str, Value]:
    return {
        names.KERNEL: call.kernel,
        names.BUCKET: call.bucket,
        names.TIER: call.tier,
        names.MODE: call.mode,
        names.KIND: call.kind,
        names.REASONS: call.reasons,
        names.BACKGROUND: call.background,
        names.AFTER_READY: call.after_ready,
        names.RANK: rank,
        names.WAITING: waiting,
    }


def of_tuning(tuning: Tuning) -> dict[str, Value]:
    winner: dict[str, Value] = {} if tuning.winner is None else {names.TUNING_WINNER: tuning.winner}
    return {
        names.TUNING_KEY: tuning.key,
        names.TUNING_TRIALS: len(tuning.trials),
        names.TUNING_PRUNED: tuning.pruned,
        names.TUNING_FROM_DISK: tuning.from_disk,
        **winner,
    }


def of_prewarm(event: PrewarmEnded) -> dict[str, Value]:
    found: dict[str, Value] = {
        names.PREWARM_PLANNED: event.planned,
        names.PREWARM_REPLAYED: event.replayed,
        names.PREWARM_THERE: event.there_before,
        names.PREWARM_SKIPPED: event.skipped,
    }
    if event.coverage is not None:
        found[names.PREWARM_COVERAGE] = event.coverage
    if event.stopped is not None:
        found[names.PREWARM_STOPPED] = event.stopped
    return found


def of_request(cost: RequestCost) -> Iterator[tuple[str, Value]]:
    yield names.REQUEST_ID, cost.id
    yield names.OPERATION, "text_completion"
    yield names.OUTPUT_TOKENS, cost.tokens
    yield names.PIPELINED, cost.pipelined
    if cost.model:
        yield names.MODEL, cost.model
    if cost.ttft_ns is not None:
        yield names.TTFT, cost.ttft_ns / _NS
    if cost.tpot_ns is not None:
        yield names.TPOT, cost.tpot_ns / _NS
    yield from _of_exposure("before_first_token", cost.before)
    if cost.first_token_ns is not None:
        yield from _of_exposure("after_first_token", cost.after)
    for phase, ns in _phases(cost).items():
        yield f"{names.EXPOSURE}.phase.{phase}", ns / _NS
    if cost.parts is not None:
        for part in ("queue", "execution", "exposure", "fallback", "remainder"):
            yield f"{names.PART}.{part}", getattr(cost.parts, f"{part}_ns") / _NS


def _of_exposure(when: str, exposure: Exposure) -> Iterator[tuple[str, Value]]:
    yield f"{names.EXPOSURE}.{when}.in_batch", exposure.in_batch_ns / _NS
    yield f"{names.EXPOSURE}.{when}.queued", exposure.queued_ns / _NS


def _phases(cost: RequestCost) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for phase, ns in (*cost.before.phases, *cost.after.phases):
        found[phase] = found.get(phase, 0) + ns
    return found
