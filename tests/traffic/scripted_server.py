"""A real HTTP server that streams completions as a script tells it, and writes down by its own clock what it did."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(frozen=True)
class Script:
    """How one request is answered. ``cut`` breaks the connection off after so many tokens, ``stop`` ends the stream."""

    before_first: float = 0.0
    between: float = 0.0
    status: int = 200
    content_type: str = "text/event-stream"
    tokens: int | None = None
    cut: int | None = None
    stop: int | None = None
    usage: bool = True
    ids: bool = False
    event: str | None = None


@dataclass
class Served:
    """One request, in seconds of `time.perf_counter`, which is one clock for all threads of this process."""

    body: dict[str, Any]
    received: float
    sent: list[float] = field(default_factory=list)


class ScriptedServer:
    def __init__(self) -> None:
        self.script: Callable[[dict[str, Any]], Script] = lambda body: Script()
        self.models = ["scripted"]
        self.served: list[Served] = []
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._list_models),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _list_models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": name} for name in self.models]})

    async def _complete(self, request: Request) -> Response:
        served = Served(await request.json(), perf_counter())
        self.served.append(served)
        script = self.script(served.body)
        if script.status != 200:
            return JSONResponse({"error": {"message": "the script says no"}}, status_code=script.status)
        return StreamingResponse(self._stream(served, script), media_type=script.content_type)

    async def _stream(self, served: Served, script: Script) -> AsyncIterator[str]:
        await asyncio.sleep(script.before_first)
        tokens = served.body["max_tokens"] if script.tokens is None else script.tokens
        for number in range(tokens):
            if number == script.cut:
                raise ConnectionAbortedError("the script cuts the connection")
            if number == script.stop:
                return
            if number:
                await asyncio.sleep(script.between)
            choice: dict[str, Any] = {"index": 0, "text": f"{number} ", "finish_reason": None}
            if script.ids:
                choice["token_ids"] = [number]
            served.sent.append(perf_counter())
            yield f"data: {json.dumps({'id': f'cmpl-{len(self.served)}', 'choices': [choice]})}\n\n"
        if script.event is not None:
            yield f"data: {script.event}\n\n"
        if script.usage:
            yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': tokens}})}\n\n"
        yield "data: [DONE]\n\n"


@contextmanager
def serving() -> Iterator[ScriptedServer]:
    """A server on a free port of this machine, in a thread."""
    scripted = ScriptedServer()
    listener = socket.create_server(("127.0.0.1", 0))  # connections wait here until the server takes them
    scripted.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(scripted.app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
        listener.close()
