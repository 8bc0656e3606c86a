"""PromQL for the board, made from rows of the metric table: a query cannot name a metric or label that does not exist.

Prometheus's `increase()` takes a series' first value for where it always was, so it never sees the event that a series
was born with. Most of what tritonprobe counts happens once (the first compile of a kernel), so `counted` does see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tritonprobe.ledger.schema import PREFIX, Metric

INTERVAL = "$__rate_interval"
"""The window of a graph's point."""
RANGE = "$__range"
"""The window of a number or table: all that the board shows."""

TARGET = ("job", "instance")
"""The labels that Prometheus adds to all that it scrapes."""
CHOSEN = ("kernel", "model")
"""Labels of ours that have a variable, too."""

PARTS: dict[str, tuple[str | None, ...]] = {"histogram": ("bucket", "count", "sum"), "summary": ("count", "sum")}
"""What a distribution is stored as."""


def series(metric: Metric, *matchers: str, part: str | None = None) -> str:
    """The series of `metric` that the variables choose, e.g. ``series(LOOKUPS, 'tier!="memory"')``.

    Raises ValueError if a matcher asks for what the metric does not have: another label, a bound that is no edge.
    """
    if part not in PARTS.get(metric.kind, (None,)):
        raise ValueError(f"{metric.name} is a {metric.kind} and has no part {part}")
    for matcher in matchers:
        _check(metric, matcher, part)
    chosen = [*TARGET, *(label for label in CHOSEN if label in metric.labels)]
    every = [*(f'{label}=~"${label}"' for label in chosen), *matchers]
    return f"{PREFIX}{metric.name}{f'_{part}' if part else ''}{{{', '.join(every)}}}"


def rate(metric: Metric, by: Iterable[str], *matchers: str, part: str | None = None) -> str:
    """Events a second; blind to the one that a series was born with, which does not matter among many."""
    return total(metric, by, f"rate({series(metric, *matchers, part=part)}[{INTERVAL}])")


def counted(metric: Metric, by: Iterable[str], *matchers: str, window: str, part: str | None = None) -> str:
    """How much a counter grew within `window`, the event that a series was born with included.

    A series that was not there at the window's start counts as a whole. Those that exist at 0 from the start need no
    such care. After a gap in scraping, for the length of a window, what came before the gap counts again.
    """
    found = series(metric, *matchers, part=part)
    grown = f"increase({found}[{window}])"
    if not metric.created:
        grown = f"last_over_time({found}[{window}]) unless {found} offset {window} or {grown}"
    return total(metric, by, grown)


def quantile(q: float, metric: Metric, *matchers: str, window: str, by: Iterable[str] = ()) -> str:
    """The q-quantile of what a histogram took within `window`; nothing, rather than NaN, where it took nothing."""
    buckets = counted(metric, (*by, "le"), *matchers, window=window, part="bucket")
    return f"histogram_quantile({q}, {buckets}) >= 0"


def ratio(part: str, whole: str) -> str:
    """A share, sum over sum; nothing, rather than NaN, where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def total(metric: Metric, by: Iterable[str], expression: str, operator: str = "sum") -> str:
    """`expression` over all series that have the same labels `by`."""
    by = tuple(by)
    for label in by:
        if label not in (*metric.labels, *TARGET, "le"):
            raise ValueError(f"{metric.name} has no label {label}")
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def _check(metric: Metric, matcher: str, part: str | None) -> None:
    found = re.fullmatch(r'(\w+)(=|!=|=~|!~)"([^"]*)"', matcher)
    if found is None:
        raise ValueError(f"{matcher} is no matcher")
    label, _, value = found.groups()
    if label == "le" and part == "bucket":
        if value not in [str(float(bound)) for bound in metric.bounds]:  # as it is exposed: 1.0, not 1
            raise ValueError(f"{value} is no bound of {metric.name}: no bucket ends there")
    elif label not in metric.labels:
        raise ValueError(f"{metric.name} has no label {label}")
