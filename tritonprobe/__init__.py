"""tritonprobe: a serving-side latency profiler for Triton kernels.

    from tritonprobe import instrument, ready, serve

    instrument()        # every Triton kernel of the process
    serve()             # http://127.0.0.1:9464/metrics
    ready()             # each cold call from here on is an incident

Importing this imports neither triton nor torch.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tritonprobe._version import __version__
from tritonprobe.model import GpuSample
from tritonprobe.op import op
from tritonprobe.plain import PLAIN_LOG
from tritonprobe.probe import instrument, probe, uninstrument
from tritonprobe.runtime import Runtime, configure, current
from tritonprobe.settings import SettingError, Settings
from tritonprobe.shapes.buckets import BucketSpecError, pow2
from tritonprobe.shapes.census import Census, CensusError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tritonprobe import gpu as gpu
    from tritonprobe.adapter.outside import OutsideCall
    from tritonprobe.export.asgi import App
    from tritonprobe.export.http import Server
    from tritonprobe.export.prometheus import Collector
    from tritonprobe.prewarming import Prewarmed
    from tritonprobe.requests import LiveRequest, Step

__all__ = [
    "BucketSpecError",
    "Census",
    "CensusError",
    "GpuSample",
    "SettingError",
    "Settings",
    "__version__",
    "asgi_app",
    "cold_call",
    "collector",
    "configure",
    "gpu_window",
    "inputs_for",
    "instrument",
    "join",
    "op",
    "pow2",
    "prewarm",
    "probe",
    "ready",
    "request",
    "serve",
    "step",
    "uninstrument",
]

logging.getLogger("tritonprobe").addFilter(PLAIN_LOG)

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """`tritonprobe.gpu`, once somebody names it."""
        if name == "gpu":
            return import_module("tritonprobe.gpu")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def request(
    id: str | None = None,  # noqa: A002  # what users call it
    model: str = "",
    traceparent: str | None = None,
    *,
    record: bool = True,
) -> LiveRequest:
    """A request, from now until its ``finish()``; also a context manager. ``token()`` counts its output.

    Its trace, for exemplars and spans, is that of the W3C header `traceparent` if given, else of the current
    OpenTelemetry span. ``record=False``: another process of the engine (see `join`) holds the request of this `id`, and
    counts its tokens; the handle made here says who is in this process's steps.
    """
    return current().live.request(id, model=model, traceparent=traceparent, record=record)


def step(
    batch: Iterable[LiveRequest | str | tuple[LiveRequest | str, int]] = (),
    id: str | int | None = None,  # noqa: A002  # what users call it
) -> Step:
    """One iteration of an engine: ``with step([(request, tokens), ...]):`` around the model's execution.

    An entry is a request, or the id of one that another process holds, alone or with its tokens. `id` is what all ranks
    call this iteration: where steps overlap, it tells whose stall is whose. A worker that knows no batch gives the id
    alone. Engines with several steps in flight call ``s = step(...).begin()`` and ``s.end()``. From a worker on another
    host, ``s.stalls()`` is sent with its results and handed to ``s.charge()`` where the step is known.
    """
    return current().live.step(batch, id)


def join(engine: str) -> None:
    """This process serves the requests of `engine`, together with others: the server, the scheduler, each worker.

    Those that join one name, and count in the same ``TRITONPROBE_DIR``, charge each other's stalls to the requests that
    any of them holds. Call it once in each process, after a fork. ``TRITONPROBE_ENGINE`` does the same without code.
    """
    current().join(engine)


def cold_call(name: str, kind: str = "jit") -> OutsideCall:
    """Another compiler's work, as a cold call: ``with cold_call("deep_gemm", kind="jit"):`` around what compiles.

    For the thread that waits, and not across an ``await``. Timed and counted as Triton's are, under the phase `kind`
    (lower case, at most 32 kinds a process), and charged to whoever waits. What it yields has a ``tier``: set it to
    ``"disk"`` if the result was found there.
    """
    return current().outside(name, kind)


def inputs_for(kernel: str, make: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Says how to make tensors that are safe to tune `kernel` (``module.qualname``) with: for those that take indices.

    ``make(arguments)`` gets a recorded call's arguments, tensors by type, shape and strides, and returns those that it
    makes, by name. Called where the kernel is defined, so that ``tritonprobe prewarm --tune`` comes by it.
    """
    from tritonprobe.adapter.trials import inputs_for as register

    register(kernel, make)


def prewarm(
    census: Census,
    *,
    cover: float = 0.999,
    budget: float | None = None,
    threads: int | None = None,
    modules: Collection[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Prewarmed:
    """Replays a census here: its variants are compiled or read, and loaded, before the first request needs them.

    ``cover`` is the share of the stall that it is to save, ``budget`` the seconds it may take. Kernels are looked for
    in the packages that the program loaded, and in ``modules``. What is stale is named in the result, and skipped.
    Raises ValueError for a bad `cover`, RuntimeError while a CUDA graph is captured.
    """
    return current().prewarm(census, cover=cover, budget=budget, threads=threads, modules=modules, progress=progress)


def ready() -> None:
    """The process takes traffic from now on: ``/ready`` says so, and each cold call after it is an incident.

    With TRITONPROBE_PREWARM the census of that name is replayed first, for TRITONPROBE_READY_TIMEOUT at most.
    """
    current().ready()


def gpu_window(seconds: float = 0.05) -> tuple[GpuSample, ...]:
    """Measures GPU times for so many seconds, now: launches of other threads, by kernel and bucket.

    They are counted as those of the windows that open by themselves. Nothing comes back where GPU times cannot be
    measured (``gpu_timing_info`` says why), or if the window had to be given up. Raises SettingError if GPU times are
    switched off.
    """
    watch = current().adapter.gpu
    if watch is None:
        raise SettingError('GPU times are off: set TRITONPROBE_GPU_WINDOWS=1, or configure(gpu_windows="on")')
    return watch.times.window(seconds)


def serve(addr: str | None = None, port: int | None = None) -> Server:
    """Serves ``/metrics``, ``/ready``, ``/census`` and ``/report`` from a thread of this process; loopback by default.

    Raises PortInUse (an OSError) that names the port and the setting.
    """
    from tritonprobe.export.http import serve as serve_runtime

    runtime = current()
    runtime.shown = True
    return serve_runtime(runtime, addr, port, report=_reporter(runtime))


def asgi_app() -> App:
    """What `serve` answers, as an ASGI app to be mounted in the server that is there."""
    from tritonprobe.export.asgi import app

    runtime = current()
    runtime.shown = True
    return app(runtime, report=_reporter(runtime))


def _reporter(runtime: Runtime) -> Callable[[], object]:
    from tritonprobe.story import tell, to_json

    return lambda: to_json(tell(runtime))


def collector() -> Collector:
    """A `prometheus_client` collector, for a program that has a registry of its own.

    In that client's multi-process mode (PROMETHEUS_MULTIPROC_DIR) it shows all processes that count in TRITONPROBE_DIR,
    as the client's own collector does: a scrape may reach any of them.
    """
    from tritonprobe.export.prometheus import Collector
    from tritonprobe.ledger import FileLedger

    runtime = current()
    runtime.shown = True
    ledger = runtime.ledger
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ and isinstance(ledger, FileLedger):
        return Collector(ledger.reading())
    return Collector(ledger)
