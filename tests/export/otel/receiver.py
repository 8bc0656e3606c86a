"""An OTLP/HTTP receiver, as small as one can be: takes what exporters POST and keeps the spans. By the protocol's own
messages, so that what it reads is what any collector would read."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, object]
    links: tuple[tuple[str, str], ...]
    scope: str


@dataclass
class Receiver:
    endpoint: str
    spans: list[Span] = field(default_factory=list)
    encodings: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name.startswith(name)]

    def wait_for(self, holds: Callable[[list[Span]], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not holds(self.spans):
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.05)


@contextmanager
def receiving() -> Iterator[Receiver]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            encoding = self.headers.get("Content-Encoding", "none")
            receiver.encodings.add(encoding)
            if self.path == "/v1/traces":
                asked = ExportTraceServiceRequest.FromString(gzip.decompress(body) if encoding == "gzip" else body)
                receiver.spans.extend(_spans(asked))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(asked: Any) -> Iterator[Span]:
    for resource in asked.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {attribute.key: _value(attribute.value) for attribute in span.attributes},
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    scope.scope.name,
                )


def _value(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind)
