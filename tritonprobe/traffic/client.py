"""The load client: sends a trace's requests at their times to any OpenAI-compatible server and times the answers.

    load = Load("http://127.0.0.1:8000", speed=2)
    await reach(load)                                   # UnreachableError, before anything is sent
    summary = Summary.of(await replay(trace, load))

The load is open: a request goes out at its time whether or not the server has answered the others, as users would send
it. Only `Load.in_flight` bounds it. What that, or a client that cannot keep up, delays is measured (`Outcome.late`) and
is part of no latency. Needs httpx and sniffio.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

import httpx

from tritonprobe.settings import SettingError
from tritonprobe.traffic.answer import Answer, AnswerError, one_line
from tritonprobe.traffic.generator import prompt_ids
from tritonprobe.traffic.latency import INTERRUPTED, Outcome, Replay
from tritonprobe.traffic.sse import EventStream, StreamError
from tritonprobe.traffic.trace import Trace, TraceRow

REACH_SECONDS = 10.0
"""How long a server may take to say which models it has."""


class UnreachableError(Exception):
    """No server answers where the load should go; the message is one line."""


@dataclass(frozen=True, slots=True)
class Load:
    """Where a trace goes, and how. Raises SettingError naming what cannot be used.

    `url` is the server's, with or without ``/v1``. `speed` divides the trace's times. Prompts are ids below `vocab`;
    1000 is within any model's. `max_prompt` cuts longer prompts, `timeout` (seconds) bounds a request from its sending
    to its end. Proxy settings of the environment are ignored: a proxy's latency is not the server's.
    """

    url: str
    model: str | None = None
    speed: float = 1.0
    vocab: int = 1000
    max_prompt: int | None = None
    timeout: float = 600.0
    in_flight: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise SettingError(f"url={self.url!r}: {error}") from None
        whole = url.scheme in ("http", "https") and bool(url.host) and 0 < (url.port or 80) < 65_536
        _check("url", self.url, whole, "http://HOST:PORT")
        _check("speed", self.speed, 0 < self.speed < math.inf, "a factor above 0")
        _check("vocab", self.vocab, 2 <= self.vocab <= 10_000_000, "a whole number from 2 to 10000000")
        _check("max_prompt", self.max_prompt, self.max_prompt is None or self.max_prompt >= 1, "a number of tokens")
        _check("timeout", self.timeout, 0 < self.timeout < math.inf, "seconds, above 0")
        _check("in_flight", self.in_flight, self.in_flight >= 1, "a number of requests")

    def endpoint(self, name: str) -> str:
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{name}"


async def reach(load: Load) -> list[str]:
    """The names of the server's models; none if it does not list them. Raises UnreachableError if nothing answers."""
    try:
        async with httpx.AsyncClient(timeout=REACH_SECONDS, trust_env=False) as http:
            response = await http.get(load.endpoint("models"))
    except httpx.TimeoutException:
        raise UnreachableError(f"{load.url}: no answer within {REACH_SECONDS:g} s; is the server up?") from None
    except httpx.HTTPError as error:
        raise UnreachableError(f"{load.url}: no server answers there ({one_line(str(error))}); is it up?") from None
    try:
        return [model["id"] for model in response.json()["data"] if isinstance(model["id"], str)]
    except (ValueError, KeyError, TypeError):
        return []


async def replay(
    trace: Trace,
    load: Load,
    *,
    on_outcome: Callable[[Outcome], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Replay:
    """Sends `trace` to `load`'s server, waits for the answers and returns what was measured.

    `on_outcome` hears of each request as it ends. Setting `stop` ends the replay at once: open requests are recorded as
    interrupted, the others not sent.
    """
    async with _Lanes(load.timeout) as lanes:
        sender = _Sender(trace, load, lanes, on_outcome)
        sending = asyncio.create_task(sender.send_all())
        stopping = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            interrupted = not sending.done()
            open_tasks = [sending, stopping, *sender.open]
            for task in open_tasks:
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)
        if not interrupted:
            sending.result()
        outcomes = tuple(sorted(sender.outcomes, key=lambda outcome: outcome.index))
        return Replay(len(trace.rows), outcomes, sender.clipped, perf_counter() - sender.start, interrupted)


class _Sender:
    """Sends the requests of one replay, each in a task of its own."""

    def __init__(self, trace: Trace, load: Load, lanes: _Lanes, on_outcome: Callable[[Outcome], None] | None) -> None:
        self.open: set[asyncio.Task[None]] = set()
        self.outcomes: list[Outcome] = []
        self.clipped = 0
        self.start = perf_counter()
        self._trace = trace
        self._load = load
        self._lanes = lanes
        self._on_outcome = on_outcome
        self._slots = asyncio.Semaphore(load.in_flight)

    async def send_all(self) -> None:
        for index, row in enumerate(self._trace.rows):
            # The body is made before the request is due: a long prompt takes a millisecond.
            request = self._prepare(index, row)
            await asyncio.sleep(max(0.0, self.start + request.due - perf_counter()))
            await self._slots.acquire()
            task = asyncio.create_task(self._send(request))
            self.open.add(task)
            task.add_done_callback(self._closed)
        await asyncio.gather(*self.open)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self.open.discard(task)
        self._slots.release()

    def _prepare(self, index: int, row: TraceRow) -> _Request:
        load = self._load
        prompt_tokens = row.prompt_tokens
        if load.max_prompt is not None and prompt_tokens > load.max_prompt:
            prompt_tokens = load.max_prompt
            self.clipped += 1
        asked = max(1, row.output_tokens)  # a server answers with one token at least
        body = {
            "prompt": prompt_ids(load.seed, index, prompt_tokens, load.vocab),
            "max_tokens": asked,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if load.model is not None:
            body["model"] = load.model
        return _Request(index, row.t / load.speed, prompt_tokens, asked, json.dumps(body).encode())

    async def _send(self, request: _Request) -> None:
        answer = Answer()
        error: str | None = None
        detail: str | None = None
        sent = perf_counter()
        try:
            await asyncio.wait_for(self._exchange(request.body, answer), self._load.timeout)
        except asyncio.CancelledError:
            error = INTERRUPTED
            raise
        except (asyncio.TimeoutError, httpx.TimeoutException):
            error, detail = "timeout", f"not complete within {self._load.timeout:g} s"
        except AnswerError as bad:
            error, detail = bad.kind, bad.detail
        except httpx.ConnectError as failed:
            error, detail = "connect", one_line(str(failed))
        except httpx.HTTPError as failed:
            error, detail = "disconnected", one_line(f"{type(failed).__name__}: {failed}")
        except Exception as failed:  # a fault of this client must not pass for an answer
            error, detail = "client", one_line(f"{type(failed).__name__}: {failed}")
        finally:
            self._record(request, sent, answer, error, detail)

    async def _exchange(self, body: bytes, answer: Answer) -> None:
        headers = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
        url = self._load.endpoint("completions")
        async with self._lanes.one() as http, http.stream("POST", url, content=body, headers=headers) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                raise AnswerError(f"http {response.status_code}", await _beginning(response))
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise AnswerError("protocol", f"content-type {one_line(kind)!r}: expected text/event-stream")
            events = EventStream()
            # To the end, past [DONE]: a connection that was read to its end serves the next request.
            async for chunk in response.aiter_bytes():
                now = perf_counter()
                try:
                    found = events.feed(chunk)
                except StreamError as error:
                    raise AnswerError("protocol", str(error)) from None
                for event in found:
                    answer.take(event, now)
        if answer.end is None:
            raise AnswerError("disconnected", "the stream ended without [DONE]")
        if answer.first_token is None:
            raise AnswerError("no tokens", "the stream ended without a token")

    def _record(self, request: _Request, sent: float, answer: Answer, error: str | None, detail: str | None) -> None:
        outcome = Outcome(
            index=request.index,
            due=request.due,
            sent=sent - self.start,
            prompt_tokens=request.prompt_tokens,
            asked_tokens=request.asked_tokens,
            tokens=answer.tokens,
            ttft=None if answer.first_token is None else answer.first_token - sent,
            tpot=answer.tpot,
            e2e=None if answer.end is None else answer.end - sent,
            status=answer.status,
            error=error,
            detail=detail,
            id=answer.id,
        )
        self.outcomes.append(outcome)
        if self._on_outcome is not None:
            self._on_outcome(outcome)


class _Lanes:
    """As many connections as requests are open, each an httpx client of its own.

    One client with all of them would look through its whole pool for each request, and again for each that ends: with a
    few hundred open, that takes longer than everything else this client does, and would be measured as the server's.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._tls = httpx.create_ssl_context()
        self._free: list[httpx.AsyncClient] = []
        self._clients = AsyncExitStack()

    async def __aenter__(self) -> _Lanes:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._clients.aclose()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A connection that no other request uses: the one that was freed last, or a new one."""
        if self._free:
            http = self._free.pop()
        else:
            http = httpx.AsyncClient(timeout=self._timeout, verify=self._tls, trust_env=False)
            await self._clients.enter_async_context(http)
        try:
            yield http
        finally:
            self._free.append(http)


@dataclass(frozen=True, slots=True)
class _Request:
    index: int
    due: float
    prompt_tokens: int
    asked_tokens: int
    body: bytes


async def _beginning(response: httpx.Response) -> str:
    """The first of what an error answer says, on one line."""
    said = b""
    async for chunk in response.aiter_bytes():
        said += chunk
        if len(said) >= 1024:
            break
    return one_line(said)


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise SettingError(f"{name}={value!r}: expected {expected}")
