"""The same answers as an ASGI app, to mount in a server that is there anyway.

    Starlette(routes=[Mount("/tritonprobe", app(runtime.current())), ...])

Raw ASGI, no framework. An answer is made in a worker thread, so that a scrape never holds up the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tritonprobe.export.routes import METHODS, Probed, Response, Source, refuse, respond

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def app(runtime: Probed, report: Callable[[], object] | None = None) -> App:
    """An ASGI app that serves `runtime`; ``report`` answers ``/report``."""
    source = Source(runtime, report)

    async def tritonprobe(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _send(await _respond(scope, source), scope["method"], send)

    return tritonprobe


async def _respond(scope: Scope, source: Source) -> Response:
    if scope["method"] not in METHODS:
        return refuse(scope["method"])
    # A mounted app is given the whole path and, apart, the part of it that led here.
    path = str(scope["path"]).removeprefix(scope.get("root_path", "")) or "/"
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
    return await asyncio.to_thread(respond, path, accept, source)


async def _send(response: Response, method: str, send: Send) -> None:
    headers = [
        (b"content-type", response.content_type.encode("latin-1")),
        (b"content-length", str(len(response.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if method not in METHODS:
        headers.append((b"allow", ", ".join(METHODS).encode()))
    await send({"type": "http.response.start", "status": int(response.status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else response.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
