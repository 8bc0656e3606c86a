"""An ASGI middleware that makes each completion a request: for servers whose engine you cannot or need not change.

    app = Middleware(app, model="llama")                        # any ASGI app
    app.add_middleware(Middleware, model="llama")               # FastAPI, Starlette

A request begins when a POST to one of `paths` arrives, in the trace of its ``traceparent`` header, and ends with the
last byte of the answer, when the app raises, or when the client goes away. The first event of a stream that carries
output ends the time to the first token: one that names a role, is empty, tells the usage or is an error does not.
An answer that is not streamed has no first token that anyone saw, so it has no such time.

The handle is in ``scope["tritonprobe.request"]``: an engine gives it to ``step()``. An engine that knows its tokens
better calls ``token()`` itself, with ``Middleware(..., count=None)``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tritonprobe.export.asgi import App, Message, Receive, Scope, Send
from tritonprobe.runtime import Runtime, current
from tritonprobe.traffic.sse import EventStream

if TYPE_CHECKING:
    from tritonprobe.requests import LiveRequest

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate")
KEY = "tritonprobe.request"
"""Where the app finds its request in the scope."""

Count = Callable[[bytes], int]
"""Takes the data of one event of a stream, and tells how many output tokens it carries."""


def openai_tokens(data: bytes) -> int:
    """Output tokens of one event of OpenAI's protocols: one for each id that it gives, else 1 if it carries any."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return 0  # [DONE], or nothing that we know
    if not isinstance(event, dict):
        return 0
    kind = event.get("type")
    if isinstance(kind, str):  # the Responses API: its deltas are the output
        return int(kind.endswith(".delta") and bool(event.get("delta")))
    choices = event.get("choices")
    if not isinstance(choices, list):
        return int(bool(event.get("text") or event.get("token")))
    return sum(_tokens_of(choice) for choice in choices if isinstance(choice, dict))


def _tokens_of(choice: dict[str, Any]) -> int:
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    delta = choice.get("delta")
    said = delta if isinstance(delta, dict) else choice
    return int(any(said.get(name) for name in ("text", "content", "reasoning_content", "reasoning", "tool_calls")))


class Middleware:
    """Wraps an ASGI app, see the module. `runtime` is for tests and programs with several."""

    def __init__(
        self,
        app: App,
        *,
        model: str = "",
        paths: Iterable[str] = PATHS,
        count: Count | None = openai_tokens,
        runtime: Callable[[], Runtime] = current,
    ) -> None:
        self._app = app
        self._model = model
        self._paths = frozenset(paths)
        self._count = count
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        request = self._begin(scope)
        if request is None:
            await self._app(scope, receive, send)
            return
        answer = _Answer(request, self._count, self._runtime)

        async def sending(message: Message) -> None:
            answer.take(message)  # before it goes: the client may see it, and end, before `send` returns
            await send(message)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                answer.gone = True
            return message

        try:
            await self._app({**scope, KEY: request}, receiving, sending)
        except BaseException as error:
            answer.finish(error)
            raise
        answer.finish(None)

    def _begin(self, scope: Scope) -> LiveRequest | None:
        try:
            sent = {name: value for name, value in scope["headers"] if name in (b"traceparent", b"x-request-id")}
            name, trace = sent.get(b"x-request-id"), sent.get(b"traceparent")
            return self._runtime().live.request(
                None if name is None else name.decode("latin-1"),
                self._model,
                None if trace is None else trace.decode("latin-1"),
            )
        except Exception:
            self._runtime().fault("middleware")
            return None


class _Answer:
    """What goes back to one client, as far as it tells of tokens and of the end. Never raises."""

    def __init__(self, request: LiveRequest, count: Count | None, runtime: Callable[[], Runtime]) -> None:
        self._request = request
        self._count = count
        self._runtime = runtime
        self._stream: EventStream | None = None
        self._status = 0
        self._ended = False
        self.gone = False

    def take(self, message: Message) -> None:
        try:
            if message["type"] == "http.response.start":
                self._status = int(message["status"])
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
                if self._count is not None and self._status < 400 and kind.startswith(b"text/event-stream"):
                    self._stream = EventStream()
            elif message["type"] == "http.response.body":
                self._events(message.get("body", b""))
                self._ended = not message.get("more_body", False)
        except Exception:
            self._stream = None  # nothing of it can be trusted from here on
            self._runtime().fault("middleware")

    def _events(self, body: bytes) -> None:
        if self._stream is None or self._count is None or not body:
            return
        tokens = sum(self._count(event) for event in self._stream.feed(body))
        if tokens:
            self._request.token(tokens)

    def finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._request.finish(error)
        elif self._status >= 400:
            self._request.finish(f"HTTP {self._status}")
        elif not self._ended:
            self._request.finish("Disconnected" if self.gone else "Unanswered")
        else:
            self._request.finish()
