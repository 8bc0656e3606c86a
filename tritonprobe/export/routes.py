"""What each path answers, for any carrier: no sockets here, `http` and `asgi` bring the answers out.

==============  =========================================================================
``/``           these paths
``/metrics``    the ledger for Prometheus, as text or OpenMetrics
``/ready``      200 once the process takes traffic, 503 before; JSON, with the reason and the prewarmed coverage
``/census``     what was launched, how often and how cold, for ``tritonprobe prewarm``; JSON
``/report``     the report of whoever serves it: JSON, or text for those who prefer that, as browsers do
==============  =========================================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from io import StringIO
from typing import Protocol

from tritonprobe.export.accept import preferred
from tritonprobe.export.prometheus import render
from tritonprobe.ledger import Readable, Sample
from tritonprobe.ledger.schema import PREWARM_COVERAGE
from tritonprobe.shapes.census import Census
from tritonprobe.story import from_json

log = logging.getLogger("tritonprobe")

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
METHODS = ("GET", "HEAD")
_READ = ("text/plain", "text/html")
_PATHS = """tritonprobe
/metrics  for Prometheus, as text or OpenMetrics
/ready    200 once the process takes traffic, 503 before
/census   what was launched, how often and how cold, JSON
"""
_REPORT = "/report   what cold calls cost so far: text in a browser, or with 'Accept: text/plain'; else JSON\n"
_NO_REPORT = "no report here: single calls and requests stay in the probed process, where serve() answers /report"


class Probed(Protocol):
    """The part of a runtime that is served."""

    @property
    def ledger(self) -> Readable: ...
    @property
    def ready_unix_ns(self) -> int | None: ...
    @property
    def ready_because(self) -> str | None:
        """Why it is ready, or not yet, where there is more to say than whether `ready()` was called."""

    def census(self) -> Census: ...
    def fault(self, part: str) -> None:
        """Counts a fault of ours. Never raises."""


@dataclass(frozen=True, slots=True)
class Source:
    """What answers are made from. ``report`` gives a story as JSON can say it; without it there is no ``/report``."""

    runtime: Probed
    report: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    content_type: str
    body: bytes


def respond(path: str, accept: str | None, source: Source) -> Response:
    """The answer to GET `path`; a query is ignored. Never raises: a fault of ours is a 500, logged and counted."""
    path = path.partition("?")[0]
    try:
        return _answer(path, accept, source)
    except Exception as error:
        log.warning("tritonprobe: %s failed", path, exc_info=True)
        source.runtime.fault("export")
        return _text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{path} failed: {type(error).__name__}; see the log")


def refuse(method: str) -> Response:
    """The answer to any other method."""
    return _text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed; use {' or '.join(METHODS)}")


def _answer(path: str, accept: str | None, source: Source) -> Response:
    if path == "/metrics":
        return Response(HTTPStatus.OK, *render(source.runtime.ledger, accept))
    if path == "/ready":
        return _ready(source.runtime)
    if path == "/census":
        return Response(HTTPStatus.OK, JSON, source.runtime.census().text().encode())
    if path == "/report" and source.report is not None:
        report = source.report()
        reads_text = preferred(accept, (JSON, *_READ)) in _READ
        return _text(HTTPStatus.OK, _readable(report)) if reads_text else _json(HTTPStatus.OK, report)
    paths = _PATHS if source.report is None else _PATHS + _REPORT
    if path == "/":
        return _text(HTTPStatus.OK, paths)
    why = _NO_REPORT if path == "/report" else "there is nothing here"
    return _text(HTTPStatus.NOT_FOUND, f"{why}; {paths}")


def _readable(report: object) -> str:
    from tritonprobe.export import text  # brings rich, which nobody else here needs

    page = StringIO()
    text.show([text.Run("so far", from_json(report))], text.console(page))
    return page.getvalue()


def _ready(runtime: Probed) -> Response:
    unix_ns = runtime.ready_unix_ns
    said: dict[str, object] = {"ready": unix_ns is not None}
    if unix_ns is None:
        said["because"] = runtime.ready_because or "tritonprobe.ready() was not called yet"
    else:
        said["because"] = runtime.ready_because or "tritonprobe.ready() was called"
        said["since_unix_seconds"] = unix_ns / 1e9
    coverage = _coverage(runtime.ledger)
    if coverage is not None:
        said["prewarm_coverage"] = coverage
    return _json(HTTPStatus.OK if unix_ns is not None else HTTPStatus.SERVICE_UNAVAILABLE, said)


def _coverage(ledger: Readable) -> float | None:
    """What the gauge says; None where no census was replayed."""
    for family in ledger.collect():
        if family.metric is PREWARM_COVERAGE:
            return next((sample.value for sample in family.samples if isinstance(sample, Sample)), None)
    return None


def _json(status: HTTPStatus, value: object) -> Response:
    return Response(status, JSON, json.dumps(value).encode() + b"\n")


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, TEXT, text.rstrip("\n").encode() + b"\n")
