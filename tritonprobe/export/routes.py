"""What each path answers, for any carrier: no sockets here, `http` and `asgi` bring the answers out.

==============  =========================================================================
``/``           these paths
``/metrics``    the ledger for Prometheus, as text or OpenMetrics
``/ready``      200 once the process declared itself ready, 503 before; JSON
``/report``     the report of whoever serves it, JSON; an exporter process has none
==============  =========================================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from tritonprobe.export.prometheus import render
from tritonprobe.ledger import Readable

log = logging.getLogger("tritonprobe")

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
METHODS = ("GET", "HEAD")
_PATHS = """tritonprobe
/metrics  for Prometheus, as text or OpenMetrics
/ready    200 once the process takes traffic, 503 before
"""
_REPORT = "/report   what cold calls cost so far, JSON\n"
_NO_REPORT = "no report here: single calls and requests stay in the probed process, where serve() answers /report"


class Probed(Protocol):
    """The part of a runtime that is served."""

    @property
    def ledger(self) -> Readable: ...
    @property
    def ready_unix_ns(self) -> int | None: ...
    def fault(self, part: str) -> None:
        """Counts a fault of ours. Never raises."""


@dataclass(frozen=True, slots=True)
class Source:
    """What answers are made from. ``report`` gives what JSON can say; without it there is no ``/report``."""

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
        return _ready(source.runtime.ready_unix_ns)
    if path == "/report" and source.report is not None:
        return _json(HTTPStatus.OK, source.report())
    paths = _PATHS if source.report is None else _PATHS + _REPORT
    if path == "/":
        return _text(HTTPStatus.OK, paths)
    why = _NO_REPORT if path == "/report" else "there is nothing here"
    return _text(HTTPStatus.NOT_FOUND, f"{why}; {paths}")


def _ready(unix_ns: int | None) -> Response:
    if unix_ns is None:
        because = "tritonprobe.ready() was not called yet"
        return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "because": because})
    because = "tritonprobe.ready() was called"
    return _json(HTTPStatus.OK, {"ready": True, "because": because, "since_unix_seconds": unix_ns / 1e9})


def _json(status: HTTPStatus, value: object) -> Response:
    return Response(status, JSON, json.dumps(value).encode() + b"\n")


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, TEXT, text.rstrip("\n").encode() + b"\n")
