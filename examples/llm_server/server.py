"""The engine over HTTP: OpenAI's completions, health, and the pages of tritonprobe.

An ASGI app on Starlette. Knows the engine and the protocol; knows no tensors.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from examples.llm_server import protocol
from examples.llm_server.engine import Engine, PromptError, QueueFullError, StoppedError
from examples.llm_server.generation import Failed, Generation, Token

# What a token id takes in the JSON that clients send, comma and spaces included, at most.
_BYTES_PER_TOKEN = 16
# Nobody reads this answer: its client has gone.
_GONE = Response(status_code=499)


def create_app(engine: Engine, model: str, max_len: int, pages: ASGIApp, on_start: Callable[[], None]) -> Starlette:
    """The app, which starts and stops `engine`.

    ``pages`` answers what no route here does: `/metrics`, `/ready`, `/report`. ``on_start`` is called once the engine
    runs and before any request is served.
    """
    completions = Completions(engine, model, max_len)

    async def models(_: Request) -> Response:
        entry = {"id": model, "object": "model", "owned_by": "tritonprobe", "max_model_len": max_len}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(_: Request) -> Response:
        load = asdict(engine.load())
        return JSONResponse({"alive": engine.alive, **load}, status_code=200 if engine.alive else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            await asyncio.to_thread(on_start)
            yield
        finally:
            await asyncio.to_thread(engine.stop)

    routes = [
        Route("/v1/completions", completions.answer, methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
        Mount("/", pages),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class Completions:
    """``POST /v1/completions``."""

    def __init__(self, engine: Engine, model: str, max_len: int) -> None:
        self._engine = engine
        self._model = model
        self._max_body = max_len * _BYTES_PER_TOKEN + 65_536
        self._watchers: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response:
        request_id = f"cmpl-{uuid.uuid4().hex}"
        feed = _Feed()
        try:
            asked = protocol.parse(await self._body(request), self._model)
            trace = request.headers.get("traceparent")
            generation = self._engine.submit(request_id, asked.prompt, asked.sampling, feed.put, trace)
        except protocol.BadRequestError as error:
            return _error(str(error), error.status, error.param)
        except PromptError as error:
            return _error(str(error), 400, "prompt")
        except (QueueFullError, StoppedError) as error:
            return _error(str(error), 503)
        except ClientDisconnect:
            return _GONE
        watcher = asyncio.create_task(self._watch(request, generation, feed))
        self._watchers.add(watcher)  # the loop itself keeps no task alive
        watcher.add_done_callback(self._watchers.discard)
        writer = protocol.Writer(request_id, self._model, len(asked.prompt))
        if asked.stream:
            return await self._stream(writer, feed, asked.include_usage)
        return await self._whole(writer, feed)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body:
                raise protocol.BadRequestError(None, f"the body is longer than {self._max_body} bytes", status=413)
        return bytes(body)

    async def _watch(self, request: Request, generation: Generation, feed: _Feed) -> None:
        """Frees the slot of a client that goes away. Ends with the response too: the server then says the same."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._engine.cancel(generation)
        feed.close()

    async def _whole(self, writer: protocol.Writer, feed: _Feed) -> Response:
        while isinstance(event := await feed.get(), Token):
            writer.chunk(event)
            if event.finish_reason is not None:
                return JSONResponse(writer.whole())
        return _GONE if event is None else _error(event.message, event.status)

    async def _stream(self, writer: protocol.Writer, feed: _Feed, include_usage: bool) -> Response:
        # The status goes out before the first token does, so it has to wait until there is one.
        first = await feed.get()
        if isinstance(first, Token):
            chunks = self._chunks(writer, first, feed, include_usage)
            return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        return _GONE if first is None else _error(first.message, first.status)

    async def _chunks(
        self, writer: protocol.Writer, first: Token, feed: _Feed, include_usage: bool
    ) -> AsyncIterator[str]:
        event: Token | Failed | None = first
        while isinstance(event, Token):
            yield protocol.sse(writer.chunk(event))
            if event.finish_reason is not None:
                if include_usage:
                    yield protocol.sse(writer.usage_chunk())
                break
            event = await feed.get()
        if isinstance(event, Failed):
            yield protocol.sse(protocol.error(event.message, event.status))
        yield protocol.DONE


class _Feed:
    """A generation's tokens on their way from the engine's thread to the event loop; None when the client has gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Token | Failed | None] = asyncio.Queue()

    def put(self, what: Token | Failed) -> None:
        """For the engine's thread. Raises RuntimeError once the loop is closed."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, what)

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def get(self) -> Token | Failed | None:
        return await self._queue.get()


def _error(message: str, status: int, param: str | None = None) -> JSONResponse:
    return JSONResponse(protocol.error(message, status, param), status_code=status)
