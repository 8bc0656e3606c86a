"""`TritonProbeInstrumentor`: tritonprobe as an OpenTelemetry instrumentation.

    TritonProbeInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)

``opentelemetry-instrument`` finds it by its entry point and calls it without arguments: then the global providers
count. Kernels are watched from the import of Triton on, so that a program without Triton pays nothing. `uninstrument`
takes back what `instrument` did: a probe that was there before stays.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

from tritonprobe.adapter.late_import import LateImport
from tritonprobe.export.otel.metrics import Metrics
from tritonprobe.export.otel.spans import Spans
from tritonprobe.ledger import Family
from tritonprobe.ledger.schema import SPANS_DROPPED
from tritonprobe.probe import instrument, uninstrument
from tritonprobe.runtime import current
from tritonprobe.tracing import Trace

log = logging.getLogger("tritonprobe")


class TritonProbeInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # it comes without types
    """Spans of cold calls, and the ledger as metrics; see the module."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("triton >= 3.6",)

    def _instrument(self, **kwargs: Any) -> None:
        """`tracer_provider` and `meter_provider`, each the global one if it is not given."""
        self._on = False
        runtime = current()
        if runtime.settings.disabled:
            log.info("tritonprobe: TRITONPROBE_DISABLED is set; nothing is watched")
            return
        self._on = True
        tracers = kwargs.get("tracer_provider") or get_tracer_provider()
        meters = kwargs.get("meter_provider") or get_meter_provider()
        self._spans = Spans(tracers, _waiting, runtime.settings.rank, _dropped)
        self._metrics = Metrics(meters, _CurrentLedger())
        runtime.bus.subscribe(self._spans)
        runtime.bus.subscribe(self._metrics)
        self._watching = self._probed = False
        self._late = LateImport("triton", self._watch)
        self._late.wait()

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002  # what the base class passes
        if not self._on:
            return
        runtime = current()
        self._late.cancel()
        runtime.bus.unsubscribe(self._spans)
        runtime.bus.unsubscribe(self._metrics)
        self._metrics.close()
        if self._watching:
            if self._probed:
                runtime.adapter.watch_probed_only()
            else:
                uninstrument()
        self._on = False

    def _watch(self, module: ModuleType) -> None:
        try:
            adapter = current().adapter
            if adapter.registry.everything:
                return  # somebody has called instrument(), whose it is to take back
            self._probed = adapter._enabled()  # @probe has patched Triton, and goes on when we have left
            instrument()
            self._watching = True
        except Exception:
            log.warning("tritonprobe: %s cannot be watched", module.__name__, exc_info=True)


# `configure()` may put another runtime in the place of the one that was there when we came; it takes subscribers along.


class _CurrentLedger:
    def collect(self) -> Iterator[Family]:
        return current().ledger.collect()


def _waiting(before_ns: int) -> list[Trace]:
    return current().live.waiting(before_ns)


def _dropped(what: str, n: int) -> None:
    current().ledger.add(SPANS_DROPPED, (what,), n)
