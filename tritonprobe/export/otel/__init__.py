"""OpenTelemetry: spans of what was cold and of who waited, and the ledger as OTel metrics.

    from tritonprobe.export.otel.instrumentor import TritonProbeInstrumentor

    TritonProbeInstrumentor().instrument(tracer_provider=..., meter_provider=...)   # without them the global ones
    TritonProbeInstrumentor().uninstrument()

No code: ``opentelemetry-instrument python server.py``. The attributes are in docs/tracing.md. `spans` and `metrics`
know the API only, so that any SDK will do; `instrumentor` knows opentelemetry-instrumentation.
"""

__all__: list[str] = []
