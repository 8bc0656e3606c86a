"""The client against a real server whose delays are known, and against one that misbehaves in every way it can."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from typing import Any

import pytest

from tests.traffic.scripted_server import Script, ScriptedServer
from tritonprobe.settings import SettingError
from tritonprobe.traffic.client import Load, UnreachableError, reach, replay
from tritonprobe.traffic.latency import INTERRUPTED, Outcome, Replay
from tritonprobe.traffic.trace import Trace, TraceRow

# What a busy machine may add to a wait before the measurement, rather than the machine, is wrong.
SLACK = 0.5


def trace(*rows: tuple[float, int, int]) -> Trace:
    return Trace(tuple(TraceRow(*row) for row in rows), skipped=0, source="test")


def send(requests: Trace, load: Load, **options: Any) -> Replay:
    return asyncio.run(replay(requests, load, **options))


def send_one(server: ScriptedServer, script: Script, tokens: int = 4, **load: Any) -> Outcome:
    server.script = lambda body: script
    (outcome,) = send(trace((0.0, 8, tokens)), Load(server.url, **load)).outcomes
    return outcome


def test_ttft_tpot_and_end_to_end_agree_with_the_servers_clock(server):
    outcome = send_one(server, Script(before_first=0.2, between=0.4), tokens=3)
    (served,) = server.served
    assert outcome.ttft is not None
    assert outcome.tpot is not None
    assert outcome.e2e is not None
    ttft = served.sent[0] - served.received
    decode = served.sent[-1] - served.sent[0]
    assert ttft >= 0.2
    assert ttft <= outcome.ttft < ttft + SLACK  # the client waits for the network besides
    assert outcome.tpot == pytest.approx(decode / 2, abs=0.1)
    assert ttft + decode <= outcome.e2e < ttft + decode + SLACK
    assert (outcome.tokens, outcome.status, outcome.error, outcome.id) == (3, 200, None, "cmpl-1")


def test_requests_go_out_at_the_traces_times(server):
    """Whether or not the server has answered the others: each answer here takes longer than the trace."""
    server.script = lambda body: Script(before_first=0.5)
    found = send(trace((0.0, 1, 1), (0.2, 2, 1), (0.4, 3, 1)), Load(server.url, speed=2))
    assert [outcome.due for outcome in found.outcomes] == [0.0, 0.1, 0.2]
    assert all(0 <= outcome.late < SLACK for outcome in found.outcomes)
    received = [served.received for served in server.served]
    assert all(later - earlier > 0.05 for earlier, later in pairwise(received))
    assert received[-1] < min(moment for served in server.served for moment in served.sent)
    assert 0.7 <= found.wall < 0.7 + SLACK


def test_what_a_server_is_sent(server):
    load = Load(server.url + "/v1/", model="scripted", vocab=50, max_prompt=20, seed=3)
    found = send(trace((0.0, 10, 0), (0.0, 500, 7)), load)
    first, second = sorted((served.body for served in server.served), key=lambda body: len(body["prompt"]))
    assert (len(first["prompt"]), len(second["prompt"])) == (10, 20)
    assert all(1 <= token < 50 for token in first["prompt"] + second["prompt"])
    assert (first["max_tokens"], second["max_tokens"]) == (1, 7)
    assert first["model"] == "scripted"
    assert first["stream"] is first["ignore_eos"] is True
    assert first["temperature"] == 0
    assert found.clipped == 1
    assert [outcome.prompt_tokens for outcome in found.outcomes] == [10, 20]

    server.served.clear()
    send(trace((0.0, 10, 0), (0.0, 500, 7)), load)
    assert sorted(len(served.body["prompt"]) for served in server.served) == [10, 20]
    assert {tuple(served.body["prompt"]) for served in server.served} == {tuple(b["prompt"]) for b in (first, second)}


def test_a_full_client_says_how_late_it_was(server):
    """One request at a time: the second waits in the client for the first, and no latency hides or includes that."""
    server.script = lambda body: Script(before_first=0.6)
    first, second = send(trace((0.0, 1, 1), (0.0, 1, 1)), Load(server.url, in_flight=1)).outcomes
    assert first.late < SLACK
    assert 0.6 <= second.late < 0.6 + SLACK
    assert second.ttft is not None
    assert 0.6 <= second.ttft < 0.6 + SLACK


@pytest.mark.parametrize(("usage", "ids"), [(True, False), (False, True), (False, False)])
def test_tokens_are_counted_with_whatever_the_server_offers(server, usage, ids):
    assert send_one(server, Script(usage=usage, ids=ids), tokens=6).tokens == 6


@pytest.mark.parametrize(
    ("script", "kind", "detail", "tokens"),
    [
        (Script(status=503), "http 503", "the script says no", 0),
        (Script(status=404), "http 404", "the script says no", 0),
        (Script(content_type="application/json"), "protocol", "expected text/event-stream", 0),
        (Script(event="hello"), "protocol", "not a JSON object: hello", 4),
        (Script(event='{"error": {"message": "engine died"}}'), "server", "engine died", 4),
        (Script(cut=2), "disconnected", "RemoteProtocolError", 2),
        (Script(stop=2), "disconnected", "without [DONE]", 2),
        (Script(tokens=0), "no tokens", "without a token", 0),
        (Script(before_first=30), "timeout", "not complete within 0.3 s", 0),
        (Script(between=30), "timeout", "not complete within 0.3 s", 1),
    ],
    ids=lambda value: value.removesuffix("\n") if isinstance(value, str) else None,
)
def test_failures_are_told_apart(server, script, kind, detail, tokens):
    """And what came before the failure is kept."""
    outcome = send_one(server, script, timeout=0.3 if kind == "timeout" else 20)
    assert outcome.error == kind
    assert detail in str(outcome.detail)
    assert outcome.tokens == tokens
    assert (outcome.ttft is None) == (tokens == 0)


def test_a_failed_request_stops_no_other(server):
    server.script = lambda body: Script(status=500 if len(body["prompt"]) == 2 else 200)
    heard: list[int] = []
    found = send(
        trace((0.0, 1, 3), (0.0, 2, 3), (0.0, 3, 3)), Load(server.url), on_outcome=lambda o: heard.append(o.index)
    )
    assert [outcome.error for outcome in found.outcomes] == [None, "http 500", None]
    assert sorted(heard) == [0, 1, 2]


def test_a_server_that_is_gone(server):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    (outcome,) = send(trace((0.0, 1, 1)), Load(url)).outcomes
    assert outcome.error == "connect"
    with pytest.raises(UnreachableError, match=f"{url}: no server answers there"):
        asyncio.run(reach(Load(url)))


def test_what_answers_but_is_no_http_server():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def meet() -> None:
            async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                writer.close()

            async with await asyncio.start_server(hello, sock=listener):
                await reach(Load(f"http://127.0.0.1:{listener.getsockname()[1]}"))

        with pytest.raises(UnreachableError, match="no server answers there"):
            asyncio.run(meet())


def test_the_models_of_a_server(server):
    server.models = ["one", "two"]
    assert asyncio.run(reach(Load(server.url))) == ["one", "two"]
    assert asyncio.run(reach(Load(server.url + "/elsewhere"))) == []


def test_stopping_keeps_what_was_measured(server):
    """One request is answered, one open, one not yet due when the replay is stopped."""
    server.script = lambda body: Script(before_first=60 if len(body["prompt"]) == 2 else 0)

    async def stopped() -> Replay:
        stop = asyncio.Event()
        return await replay(
            trace((0.0, 1, 2), (0.0, 2, 2), (60.0, 3, 2)), Load(server.url), on_outcome=lambda _: stop.set(), stop=stop
        )

    found = asyncio.run(stopped())
    assert [outcome.error for outcome in found.outcomes] == [None, INTERRUPTED]
    assert found.interrupted
    assert found.requests == 3
    assert found.wall < 30


def test_many_requests_at_once(server):
    """300 in the same instant, over 50 connections, each measured."""
    found = send(trace(*[(0.0, 64, 3)] * 300), Load(server.url, in_flight=50))
    assert [outcome.index for outcome in found.outcomes] == list(range(300))
    assert {outcome.error for outcome in found.outcomes} == {None}
    assert all(0 < (outcome.ttft or 0) <= (outcome.e2e or 0) for outcome in found.outcomes)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("url", "localhost:8000"),
        ("url", "http://"),
        ("url", "http://[::1"),
        ("url", "http://host:99999"),
        ("url", "ftp://host"),
        ("speed", 0.0),
        ("speed", float("nan")),
        ("speed", float("inf")),
        ("vocab", 1),
        ("max_prompt", 0),
        ("timeout", -1.0),
        ("in_flight", 0),
    ],
)
def test_settings_that_make_no_load(setting, value):
    with pytest.raises(SettingError, match=f"^{setting}="):
        Load(**({"url": "http://127.0.0.1:1"} | {setting: value}))
