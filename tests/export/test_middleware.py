"""The middleware under raw ASGI, Starlette and FastAPI, on a real server: what is a first token, and what an end."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import tritonprobe
from tests.adapter.conftest import total_of
from tests.conftest import require_module
from tests.export.test_asgi import running
from tritonprobe.export.middleware import KEY, Middleware, openai_tokens
from tritonprobe.model import RequestCost
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAUSE = 0.05
PATH = "/v1/chat/completions"


def sse(event: object) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def chat(**delta: object) -> bytes:
    return sse({"choices": [{"index": 0, "delta": delta}]})


DONE = b"data: [DONE]\n\n"
ROLE = chat(role="assistant", content="")
# What the app answers, by the `ask` of its request: chunks, with a pause before each one.
STREAMS: dict[str, list[bytes]] = {
    "chat": [ROLE, chat(content="Hel"), chat(content="lo"), sse({"choices": [], "usage": {}}), DONE],
    "empty": [ROLE, sse({"choices": [{"delta": {}, "finish_reason": "stop"}]}), DONE],
    "cut": [ROLE[:10], ROLE[10:] + chat(content="Hi")[:20], chat(content="Hi")[20:], DONE],
    "ids": [sse({"choices": [{"text": "", "token_ids": [1, 2, 3]}]}), DONE],
    "comment": [b": ping\n\n", chat(tool_calls=[{"index": 0}]), DONE],
    "endless": [chat(content="a")] * 200,  # ten seconds
    "error": [sse({"error": {"message": "no"}}), DONE],
}


async def chunks(ask: str) -> AsyncIterator[bytes]:
    for chunk in STREAMS[ask]:
        await asyncio.sleep(PAUSE)
        yield chunk


def answer(ask: str) -> Response:
    if ask == "whole":
        return JSONResponse({"choices": [{"message": {"content": "Hello"}}], "usage": {"completion_tokens": 1}})
    if ask == "refused":
        return JSONResponse({"error": "no"}, status_code=422)
    if ask == "breaks":
        raise ArithmeticError("on purpose")
    return StreamingResponse(chunks(ask), media_type="text/event-stream")


def starlette_app(runtime: Runtime, **options: Any) -> Any:
    async def completions(request: Request) -> Response:
        return answer((await request.json())["ask"])

    app = Starlette(routes=[Route(path, completions, methods=["POST"]) for path in (PATH, "/other")])
    app.add_middleware(Middleware, model="m", runtime=lambda: runtime, **options)
    return app


def fastapi_app(runtime: Runtime, **options: Any) -> Any:
    require_module("fastapi")
    fastapi = importlib.import_module("fastapi")
    app = fastapi.FastAPI()

    def completions(body: dict[str, str]) -> Any:
        return answer(body["ask"])

    for path in (PATH, "/other"):
        app.post(path, response_model=None)(completions)
    app.add_middleware(Middleware, model="m", runtime=lambda: runtime, **options)
    return app


def raw_app(runtime: Runtime, **options: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await answer(json.loads(body)["ask"])(scope, receive, send)

    return Middleware(app, model="m", runtime=lambda: runtime, **options)


APPS = [raw_app, starlette_app, fastapi_app]


@pytest.fixture
def probe() -> Runtime:
    return Runtime(Settings())


@pytest.fixture(params=APPS, ids=lambda app: app.__name__.removesuffix("_app"))
def url(request: pytest.FixtureRequest, probe: Runtime) -> Iterator[str]:
    with running(request.param(probe)) as base:
        yield base


def ask(url: str, probe: Runtime, what: str, path: str = PATH, **headers: str) -> RequestCost | None:
    """Asks and reads to the end; the cost of the one request that this made."""
    before = len(probe.requests)
    httpx.post(url + path, json={"ask": what}, headers=headers)
    deadline = time.monotonic() + 0.5
    while len(probe.requests) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(probe.requests) <= before + 1
    return probe.requests[-1] if len(probe.requests) > before else None


@pytest.mark.parametrize(("what", "tokens", "first"), [("chat", 2, 2), ("cut", 1, 3), ("ids", 3, 1), ("comment", 1, 2)])
def test_the_first_output_ends_the_time_to_it(url: str, probe: Runtime, what: str, tokens: int, first: int):
    """`first` is the chunk that carries it; each came a pause after the one before."""
    cost = ask(url, probe, what)
    assert cost is not None
    assert (cost.model, cost.tokens, cost.error) == ("m", tokens, None)
    assert cost.ttft_ns is not None
    assert cost.first_token_ns is not None
    assert cost.ttft_ns >= first * PAUSE * 1e9
    later = len(STREAMS[what]) - first
    assert cost.end_ns - cost.first_token_ns >= later * PAUSE * 1e9 * 0.9


@pytest.mark.parametrize("what", ["empty", "error", "whole"])
def test_an_answer_without_output_or_in_one_piece_has_no_first_token(url: str, probe: Runtime, what: str):
    cost = ask(url, probe, what)
    assert cost is not None
    assert (cost.ttft_ns, cost.tokens, cost.error) == (None, 0, None)


@pytest.mark.parametrize(("what", "error"), [("refused", "HTTP 422"), ("breaks", "ArithmeticError")])
def test_a_failure_is_named(url: str, probe: Runtime, what: str, error: str):
    cost = ask(url, probe, what)
    assert cost is not None
    assert cost.error == error


def test_other_paths_are_nobodys_request(url: str, probe: Runtime):
    assert ask(url, probe, "chat", path="/other") is None


def test_its_id_and_trace_are_those_it_was_sent_with(url: str, probe: Runtime):
    cost = ask(url, probe, "chat", traceparent=f"00-{TRACE}-{SPAN}-01", **{"x-request-id": "r-7"})
    assert cost is not None
    assert (cost.id, cost.trace) == ("r-7", (TRACE, SPAN))
    bad = ask(url, probe, "chat", traceparent="00-nonsense")
    assert bad is not None
    assert bad.trace is None  # and the client got its answer
    assert total_of(probe, "client_errors_total") == 1
    assert total_of(probe, "errors_total") == 0  # which is ours, and wakes somebody up


def test_a_client_that_goes_away_ends_its_request(url: str, probe: Runtime):
    host, port = httpx.URL(url).host, httpx.URL(url).port
    assert port is not None
    body = b'{"ask": "endless"}'
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, port)) as client:
        client.sendall(head.encode() + body)
        client.recv(1)
    deadline = time.monotonic() + 5
    while not probe.requests:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (cost,) = probe.requests
    assert cost.error == "Disconnected"


def test_the_app_may_count_for_itself(probe: Runtime):
    async def completions(request: Request) -> Response:
        handle = request.scope[KEY]
        with probe.live.step([handle]):
            handle.token(7)
        return answer("chat")

    app = Middleware(Starlette(routes=[Route(PATH, completions, methods=["POST"])]), count=None, runtime=lambda: probe)
    with running(app) as url:
        cost = ask(url, probe, "chat")
    assert cost is not None
    assert cost.tokens == 7
    assert cost.parts is not None


def test_a_predicate_that_raises_harms_nobody(probe: Runtime):
    def faulty(data: bytes) -> int:
        raise RuntimeError("theirs")

    with running(starlette_app(probe, count=faulty)) as url:
        found = httpx.post(url + PATH, json={"ask": "chat"})
        assert found.text.endswith("data: [DONE]\n\n")
    (cost,) = probe.requests
    assert cost.ttft_ns is None


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"[DONE]", 0),
        (b"", 0),
        (b"7", 0),
        (b'{"choices": null}', 0),
        (b'{"choices": [7]}', 0),
        (b'{"choices": [{"text": ""}]}', 0),
        (b'{"choices": [{"text": "a"}, {"text": "b"}]}', 2),
        (b'{"choices": [{"delta": {"reasoning_content": "hm"}}]}', 1),
        (b'{"type": "response.created", "response": {}}', 0),
        (b'{"type": "response.output_text.delta", "delta": "a"}', 1),
        (b'{"type": "response.output_text.delta", "delta": ""}', 0),
        (b'{"text": "as of SGLang"}', 1),
        (b"[" * 100_000, 0),
    ],
)
def test_what_carries_output(data: bytes, tokens: int):
    assert openai_tokens(data) == tokens


def test_it_is_what_the_public_request_makes():
    """Without a runtime of its own it counts where `tritonprobe.request` counts."""
    seen: list[object] = []

    async def app(scope: Any, receive: Callable[[], Any], send: Any) -> None:
        seen.append(scope[KEY])

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}

    async def nothing(*_: object) -> Any:
        raise AssertionError("not asked for")

    asyncio.run(Middleware(app)(scope, nothing, nothing))
    assert type(seen[0]) is type(tritonprobe.request("x"))
