"""What a replay measured, seen from the client, and its percentiles. Data and arithmetic; no network, no clock.

A percentile is the nearest rank: P99 of n values is the value at rank ceil(0.99 n) of the sorted list, a value that was
measured, never one in between. Under 100 values P99 is therefore the largest, which is why n always stands beside it.
Latencies are of requests that completed; what failed is counted by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INTERRUPTED = "interrupted"
"""The error of a request that was still open when its replay was stopped: neither the server's fault nor a success."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request that was sent, by the client's clock, in seconds.

    ``due`` and ``sent`` count from the start of the replay: when the trace wanted it sent, and when it was. ``ttft``
    runs from ``sent`` to the first token and includes connecting; ``tpot`` is the time per token after the first;
    ``e2e`` runs to the end of the stream. ``error`` is a kind (``connect``, ``timeout``, ``http 503``, ...), ``detail``
    says more, in one line. ``id`` is what the server called the request.
    """

    index: int
    due: float
    sent: float
    prompt_tokens: int
    asked_tokens: int
    tokens: int
    ttft: float | None
    tpot: float | None
    e2e: float | None
    status: int | None
    error: str | None
    detail: str | None
    id: str | None

    @property
    def late(self) -> float:
        """How much later than the trace wanted the request was sent: the client's own delay, in no latency."""
        return self.sent - self.due


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a trace: an outcome for each request that was sent, in the trace's order."""

    requests: int
    outcomes: tuple[Outcome, ...]
    clipped: int
    """Prompts cut to the longest that the load allows."""
    wall: float
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Percentiles:
    n: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Percentiles | None:
        """Of the values that were measured; None if none was."""
        found = sorted(value for value in values if value is not None)
        if not found:
            return None
        return cls(len(found), *(nearest_rank(found, percent) for percent in (50, 95, 99, 100)))


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The value at rank ceil(`percent` / 100 * n) of `ordered`, which is sorted and not empty."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """A replay in figures, in seconds. A figure of which nothing was measured is None."""

    requests: int
    completed: int
    failed: tuple[tuple[str, int], ...]
    """Kinds of errors and how often, the most frequent first."""
    examples: tuple[tuple[str, str], ...]
    """For each kind that says more, the first that was said."""
    interrupted: int
    not_sent: int
    short: int
    """Completed, with fewer tokens than the trace has."""
    clipped: int
    output_tokens: int
    wall: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    e2e: Percentiles | None
    late: Percentiles | None

    @classmethod
    def of(cls, replay: Replay) -> Summary:
        completed = [outcome for outcome in replay.outcomes if outcome.error is None]
        kinds = Counter(outcome.error for outcome in replay.outcomes if outcome.error is not None)
        interrupted = kinds.pop(INTERRUPTED, 0)
        examples: dict[str, str] = {}
        for outcome in replay.outcomes:
            if outcome.error is not None and outcome.error != INTERRUPTED and outcome.detail:
                examples.setdefault(outcome.error, outcome.detail)
        return cls(
            requests=replay.requests,
            completed=len(completed),
            failed=tuple(kinds.most_common()),
            examples=tuple(examples.items()),
            interrupted=interrupted,
            not_sent=replay.requests - len(replay.outcomes),
            short=sum(outcome.tokens < outcome.asked_tokens for outcome in completed),
            clipped=replay.clipped,
            output_tokens=sum(outcome.tokens for outcome in completed),
            wall=replay.wall,
            ttft=Percentiles.of(outcome.ttft for outcome in completed),
            tpot=Percentiles.of(outcome.tpot for outcome in completed),
            e2e=Percentiles.of(outcome.e2e for outcome in completed),
            late=Percentiles.of(outcome.late for outcome in replay.outcomes),
        )
