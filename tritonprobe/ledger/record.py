"""Turns events into series: one subscriber that knows which event counts where.

Launches, warm-ups and trials are counted by the adapter in cells of its own; only what is rare comes as an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tritonprobe.ledger import schema
from tritonprobe.ledger.derive import MEMORY
from tritonprobe.ledger.store import Exemplar, Ledger
from tritonprobe.model import ColdCall, Event, Exposure, LaunchError, Parts, RequestCost, Tuning
from tritonprobe.settings import Settings
from tritonprobe.shapes.reasons import cause_of

_NS = 1e9
_VERDICTS = {True: "true", False: "false"}


class Recorder:
    """Counts events in `ledger`; made for `Bus.subscribe`. Safe from any thread.

    ``rank`` labels cold families. ``is_ready`` tells whether the process takes traffic: from then on the figures of its
    start are frozen.
    ``on_error("record")`` is told of each part of an event that cannot be counted, and the other parts are; without it
    the first such part raises. ``waiting(before_ns)`` gives the traces of the live requests that came before then.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        is_ready: Callable[[], bool],
        on_error: Callable[[str], None] | None = None,
        waiting: Callable[[int], Sequence[tuple[str, str]]] | None = None,
    ) -> None:
        self._ledger = ledger
        self.rank = settings.rank
        self._is_ready = is_ready
        self._on_error = on_error
        self._waiting = waiting
        self._slos = tuple((round(slo * _NS), f"{slo:g}") for slo in settings.ttft_slos)
        for _, slo in self._slos:
            for verdict in _VERDICTS.values():  # so that `increase()` sees the first miss
                ledger.cell(schema.SLO_MISSES, (slo, verdict))

    def __call__(self, event: Event) -> None:
        if isinstance(event, ColdCall):
            self._cold_call(event)
        elif isinstance(event, RequestCost):
            self._request(event)
        elif isinstance(event, LaunchError):
            self._launch_error(event)

    def _cold_call(self, call: ColdCall) -> None:
        with self._part():
            self._ledger.observe(schema.COLD_CALL_SECONDS, (call.tier,), call.wall_ns / _NS, self._exemplar_of(call))
        with self._part():
            if call.error is not None:
                self._ledger.add(schema.COLD_RAISED, (call.tier,))
        with self._part():
            if not call.after_ready:
                self._ledger.add(schema.BEFORE_READY, ("prewarm" if call.kind == "prewarm" else "start",))
            elif not call.background:
                self._ledger.add(schema.AFTER_READY, (call.tier,))
                self._ledger.add(schema.AFTER_READY_BY_KERNEL, (call.kernel, call.bucket, call.tier))
        with self._part():
            self._phases(call)
        with self._part():
            for found in call.lookups:
                if found.tier != MEMORY:  # derived when the ledger is read
                    self._ledger.add(schema.LOOKUPS, (found.kernel, found.bucket, found.tier), found.count)
        with self._part():
            if call.tier == "compile":
                # A set: two elements of one tuple argument are one cause.
                for cause in {cause_of(reason) for reason in call.reasons} - {None}:
                    self._ledger.add(schema.RECOMPILES, (call.kernel, str(cause)))
        with self._part():
            if call.tuning is not None:
                self._tuning(call.kernel, call.tuning)

    def _exemplar_of(self, call: ColdCall) -> Exemplar | None:
        """The span that it began in; without one, the request that had waited longest."""
        if call.trace is None and not call.background and self._waiting is not None:
            waited = self._waiting(call.end_ns)
            return Exemplar(*waited[0]) if waited else None
        return _exemplar(call)

    def _phases(self, call: ColdCall) -> None:
        starting = not self._is_ready()
        for phase, ns in call.phases:
            if ns > 0:
                self._ledger.add(schema.COLD_SECONDS, (call.kernel, phase, self.rank), ns / _NS)
                if starting:
                    self._ledger.add(schema.STARTUP_COLD, (phase,), ns / _NS)

    def _tuning(self, kernel: str, tuning: Tuning) -> None:
        self._ledger.add(schema.AUTOTUNE_SECONDS, (kernel,), tuning.wall_ns / _NS)
        for trial in tuning.trials:
            self._ledger.add(schema.AUTOTUNE_CONFIGS, (trial.outcome,))
        # Whoever prunes may also add configurations.
        self._ledger.add(schema.AUTOTUNE_CONFIGS, ("pruned",), max(tuning.pruned, 0))

    def _request(self, cost: RequestCost) -> None:
        exemplar = _exemplar(cost)
        with self._part():
            if cost.ttft_ns is not None:
                self._ledger.observe(schema.TTFT, (cost.model,), cost.ttft_ns / _NS, exemplar)
        with self._part():
            if cost.tpot_ns is not None:
                self._ledger.observe(schema.TPOT, (cost.model,), cost.tpot_ns / _NS, exemplar)
        with self._part():
            self._exposure("before_first_token", cost.before)
        with self._part():
            if cost.first_token_ns is not None:
                self._exposure("after_first_token", cost.after)

        with self._part():
            if cost.parts is not None:
                for portion, ns in _portions(cost.parts):
                    self._ledger.observe(schema.REQUEST_PARTS, (portion,), ns / _NS)
        with self._part():
            self._objectives(cost)

    def _objectives(self, cost: RequestCost) -> None:
        """A request that ended without a token has missed what it outlived: its client gave up, or it failed."""
        took = cost.end_ns - cost.start_ns if cost.ttft_ns is None else cost.ttft_ns
        for limit, slo in self._slos:
            if took > limit:
                without = took - cost.before.total_ns <= limit
                self._ledger.add(schema.SLO_MISSES, (slo, _VERDICTS[without]))

    def _exposure(self, phase: str, exposure: Exposure) -> None:
        self._ledger.observe(schema.EXPOSURE, (phase, "in_batch"), exposure.in_batch_ns / _NS)
        self._ledger.observe(schema.EXPOSURE, (phase, "queued"), exposure.queued_ns / _NS)

    def _launch_error(self, event: LaunchError) -> None:
        if event.mode == "launch":
            self._ledger.add(schema.LAUNCH_ERRORS, (event.kernel, event.error))

    @contextmanager
    def _part(self) -> Iterator[None]:
        """A part of an event: what cannot be counted in it is told, and the next part has its turn."""
        try:
            yield
        except Exception:
            if self._on_error is None:
                raise
            self._on_error("record")


def _exemplar(event: ColdCall | RequestCost) -> Exemplar | None:
    return None if event.trace is None else Exemplar(*event.trace)


def _portions(parts: Parts) -> tuple[tuple[str, int], ...]:
    return (
        ("queue", parts.queue_ns),
        ("execution", parts.execution_ns),
        ("exposure", parts.exposure_ns),
        ("fallback", parts.fallback_ns),
        ("remainder", parts.remainder_ns),
    )
