"""A small HTTP server in a daemon thread: the standard library's, with bounds. What it says is in `routes`.

Connections, their number and how long each may last are bounded, and no client can make it print or raise. Whoever can
connect can read, so it listens on loopback unless told otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Protocol

from tritonprobe.export.routes import METHODS, Probed, Response, Source, refuse, respond
from tritonprobe.settings import Settings

log = logging.getLogger("tritonprobe")

MAX_CONNECTIONS = 32
READ_SECONDS = 10.0
"""How long one read or write may take."""
CONNECTION_SECONDS = 60.0
"""How long a connection may last: a client that drips bytes never waits for a read, and still goes."""
_POLL_SECONDS = 0.2
_WHERE_PORTS = "--port, serve(port=...), or TRITONPROBE_PORT"


class PortInUse(OSError):  # noqa: N818  # the name says what is wrong
    """Somebody else listens on that port."""


class Served(Probed, Protocol):
    """A runtime whose settings say where to listen."""

    @property
    def settings(self) -> Settings: ...


class Server:
    """A server that is up. Closes as a context manager, by `close()`, or with the process."""

    def __init__(self, listener: _Listener) -> None:
        self._listener: _Listener | None = listener
        host, self.port = listener.server_address[:2]
        self.addr = str(host)
        threading.Thread(
            target=listener.serve_forever, args=(_POLL_SECONDS,), name="tritonprobe-http", daemon=True
        ).start()
        _living.add(self)

    @property
    def url(self) -> str:
        host = f"[{self.addr}]" if ":" in self.addr else self.addr
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stops listening; answers under way are finished by their own threads. Closing twice changes nothing."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()

    def abandon(self) -> None:
        """For a forked child: lets go of the parent's sockets, which the child would keep open, and of its thread."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.abandon()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(
    runtime: Served,
    addr: str | None = None,
    port: int | None = None,
    report: Callable[[], object] | None = None,
) -> Server:
    """Serves `runtime` until the server is closed; ``addr`` and ``port`` default to its settings, port 0 takes any.

    ``report`` answers ``/report``. Raises SettingError on a port that there is not, PortInUse, or another OSError where
    the address cannot be listened on.
    """
    given = {name: value for name, value in (("addr", addr), ("port", port)) if value is not None}
    settings = runtime.settings.with_(**given)
    addr, port = settings.addr, settings.port
    try:
        return Server(_Listener(addr, port, Source(runtime, report)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} on {addr} is in use; choose a free one, or 0 for any ({_WHERE_PORTS})"
            ) from None
        because = error.strerror or error
        raise OSError(
            f"cannot listen on port {port} of {addr} ({because}); check TRITONPROBE_ADDR and TRITONPROBE_PORT"
        ) from error


class _Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True  # a port whose last connections linger is free

    def __init__(self, addr: str, port: int, source: Source) -> None:
        self.source = source
        self.address_family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__((addr, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            log.debug("tritonprobe: %s was turned away: %d connections are open", client_address, MAX_CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + CONNECTION_SECONDS
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._deadlines[request]
            self._free.release()

    def service_actions(self) -> None:
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if now > deadline:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # socketserver's signature
        log.debug("tritonprobe: a client of %s went away", client_address, exc_info=True)

    def abandon(self) -> None:
        self.socket.close()
        for connection in list(self._deadlines):
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_SECONDS
    server: _Listener

    def do_GET(self) -> None:
        self._send(respond(self.path, self.headers.get("Accept"), self.server.source))

    do_HEAD = do_GET  # noqa: N815  # the names that http.server looks for

    def _refuse(self) -> None:
        self._send(refuse(self.command))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        if self.command not in METHODS:
            self.send_header("Allow", ", ".join(METHODS))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def version_string(self) -> str:
        return "tritonprobe"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        log.debug("tritonprobe: %s: %s", self.client_address[0], format % args)


_living: weakref.WeakSet[Server] = weakref.WeakSet()


def _abandon() -> None:
    for server in _living:
        server.abandon()


os.register_at_fork(after_in_child=_abandon)
