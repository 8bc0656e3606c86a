"""What a request's life came to: the figures of one that ends. Reads what its owner and its steps kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonprobe.model import RequestCost
from tritonprobe.requests.exposure import Interval, difference, exposure, parts, union
from tritonprobe.requests.request import LiveRequest

if TYPE_CHECKING:
    from tritonprobe.requests.live import Requests

MAX_ERROR = 128
"""Characters kept of an error's name."""


def cost_of(owner: Requests, request: LiveRequest, end: int, error: BaseException | str | None) -> RequestCost:
    """The cost of a `request` that ends now. A request held elsewhere is told of there."""
    start = request.start_ns
    steps = list(owner._steps.values())  # before the windows: see `Step.end`
    mine = [(run.start, run) for batch, run in steps if run.start < end and any(r is request for r in batch.given)]
    stall = owner._stalls.between(start, end)  # before the windows, too: hears what peers say of them
    with owner._lock:
        windows = [*request._windows, *((began, end) for began, run in mine if not run.counted)]
        own = [*request._stalled, *request._told, *windows]
        first_step, took = executed(request, windows, stall)
        took += owner._batches.metered(request)
    before, after = exposure((start, end), request._first_ns, own, stall, owner.calls_since(start))
    fallback = request._fallback_ns
    engine = owner._engine
    if first_step is not None and not request.record and engine is not None:
        engine.executed(request, first_step, took, fallback)
    if first_step is None and request._elsewhere is not None:
        first_step, took, fallback = request._elsewhere
    name = type(error).__name__ if isinstance(error, BaseException) else error
    return RequestCost(
        id=request.id,
        model=request.model,
        start_ns=start,
        first_token_ns=request._first_ns,
        end_ns=end,
        unix_ns=request.unix_ns,
        tokens=request._tokens,
        before=before,
        after=after,
        error=None if name is None else str(name)[:MAX_ERROR],
        trace=request.trace,
        parts=None if first_step is None else parts((start, end), first_step, took, fallback, stall),
        pipelined=request._pipelined,
    )


def executed(request: LiveRequest, windows: Sequence[Interval], stall: Sequence[Interval]) -> tuple[int | None, int]:
    """When the request's first step began, and how long its steps took outside the `stall`."""
    steps = union((max(began, request._executed_to), ended) for began, ended in windows)
    took = sum(ended - began for began, ended in difference(steps, stall))
    firsts = [began for began, _ in windows]
    if request._first_step_ns is not None:
        firsts.append(request._first_step_ns)
    return min(firsts, default=None), request._executed + took
