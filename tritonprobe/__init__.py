"""tritonprobe: a serving-side latency profiler for Triton kernels.

    from tritonprobe import instrument, ready, serve

    instrument()        # every Triton kernel of the process
    serve()             # http://127.0.0.1:9464/metrics
    ready()             # each cold call from here on is an incident

Importing this imports neither triton nor torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tritonprobe._version import __version__
from tritonprobe.op import op
from tritonprobe.probe import instrument, probe, uninstrument
from tritonprobe.runtime import configure, current
from tritonprobe.settings import SettingError, Settings
from tritonprobe.shapes.buckets import BucketSpecError, pow2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tritonprobe.export.http import Server
    from tritonprobe.export.prometheus import Collector
    from tritonprobe.requests.live import LiveRequest, Step

__all__ = [
    "BucketSpecError",
    "SettingError",
    "Settings",
    "__version__",
    "collector",
    "configure",
    "instrument",
    "op",
    "pow2",
    "probe",
    "ready",
    "request",
    "serve",
    "step",
    "uninstrument",
]


def request(
    id: str | None = None,  # noqa: A002  # what users call it
    model: str = "",
    traceparent: str | None = None,
) -> LiveRequest:
    """A request, from now until its ``finish()``; also a context manager. ``token()`` counts its output.

    Its trace, for exemplars, is that of the W3C header `traceparent` if given, else of the current OpenTelemetry span.
    """
    return current().live.request(id, model=model, traceparent=traceparent)


def step(batch: Iterable[LiveRequest | tuple[LiveRequest, int]]) -> Step:
    """One iteration of an engine: ``with step([(request, tokens), ...]):`` around the model's execution."""
    return current().live.step(batch)


def ready() -> None:
    """The process takes traffic from now on: ``/ready`` says so, and each cold call after it is an incident."""
    current().ready()


def serve(addr: str | None = None, port: int | None = None) -> Server:
    """Serves ``/metrics``, ``/ready`` and ``/report`` from a thread of this process; loopback by default.

    Raises PortInUse (an OSError) that names the port and the setting.
    """
    from tritonprobe.export.http import serve as serve_runtime
    from tritonprobe.story import tell, to_json

    runtime = current()
    return serve_runtime(runtime, addr, port, report=lambda: to_json(tell(runtime)))


def collector() -> Collector:
    """A `prometheus_client` collector, for a program that has a registry of its own.

    In that client's multi-process mode (PROMETHEUS_MULTIPROC_DIR) it shows all processes that count in TRITONPROBE_DIR,
    as the client's own collector does: a scrape may reach any of them.
    """
    from tritonprobe.export.prometheus import Collector
    from tritonprobe.ledger import FileLedger

    ledger = current().ledger
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ and isinstance(ledger, FileLedger):
        return Collector(ledger.reading())
    return Collector(ledger)
