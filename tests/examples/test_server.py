"""The protocol over real HTTP: uvicorn on a free port of the loopback, and a model that can be held up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from examples.llm_server.config import EngineConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Generation
from examples.llm_server.server import create_app
from tests.examples.counting import BROKEN, WAIT, Counting
from tritonprobe import runtime
from tritonprobe.export import asgi

MAX_LEN = 100


@dataclass
class Served:
    client: httpx.Client
    engine: Recorded
    model: Counting
    server: uvicorn.Server

    def complete(self, prompt: object, **parameters: object) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": prompt, **parameters})


class Recorded(Engine):
    """An engine that remembers what it was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.submitted: list[Generation] = []

    def submit(self, *args: Any) -> Generation:
        self.submitted.append(super().submit(*args))
        return self.submitted[-1]


def wait_until(holds: Callable[[], bool]) -> None:
    """What happens on the other side of a socket takes a moment."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.01)


@pytest.fixture
def served() -> Iterator[Served]:
    model = Counting()
    engine = Recorded(model, EngineConfig(MAX_LEN, vocab=1024, slots=2, queue=2), "counting")
    app = create_app(engine, "counting", MAX_LEN, asgi.app(runtime.current()), lambda: None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        wait_until(lambda: server.started)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}", timeout=WAIT) as client:
                yield Served(client, engine, model, server)
        finally:
            model.gate.set()
            server.should_exit = True
            thread.join(WAIT)
    assert not thread.is_alive()
    assert not engine.alive  # the app stops what it started


def events(text: str) -> list[str]:
    """The data of each event of a stream."""
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


def test_a_whole_answer(served):
    found = served.complete([97, 98], max_tokens=3)
    assert found.status_code == 200
    answer = found.json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "counting"
    choice = answer["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("cde", [99, 100, 101], "length")
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_text_is_taken_as_bytes(served):
    assert served.complete("ab", max_tokens=3).json()["choices"][0]["text"] == "cde"


def test_a_stream_has_one_event_a_token_and_an_end(served):
    found = served.complete([97], max_tokens=3, stream=True)
    assert found.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(found.text)
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [(c["text"], c["token_ids"], c["finish_reason"]) for c in choices] == [
        ("b", [98], None),
        ("c", [99], None),
        ("d", [100], "length"),
    ]
    assert len({json.loads(chunk)["id"] for chunk in chunks}) == 1


def test_tokens_are_sent_as_they_come(served):
    served.model.gate.clear()
    parameters = {"prompt": [97], "max_tokens": 2, "stream": True}
    threading.Timer(0.2, served.model.gate.set).start()
    with served.client.stream("POST", "/v1/completions", json=parameters) as answer:
        lines = (line for line in answer.iter_lines() if line)
        served.model.gate.clear()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"] == "b"
        served.model.gate.set()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"] == "c"


def test_usage_ends_a_stream_that_asks_for_it(served):
    found = served.complete([1, 2], max_tokens=2, stream=True, stream_options={"include_usage": True})
    *_, usage, done = events(found.text)
    assert done == "[DONE]"
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
def test_each_answer_says_what_its_request_stood_behind(served, stream):
    found = served.complete([97], max_tokens=2, stream=stream)
    cost: dict[str, Any] = (json.loads(events(found.text)[-2]) if stream else found.json())["tritonprobe"]
    assert cost["ttft_seconds"] > 0
    assert cost["tpot_seconds"] > 0
    # Nothing here compiles: no request stood behind anything, and that was measured.
    nothing = {"in_batch": 0.0, "queued": 0.0}
    assert cost["exposure_seconds"] == {"before_first_token": nothing, "after_first_token": nothing}
    parts = cost["parts_seconds"]
    assert set(parts) == {"queue", "execution", "exposure", "fallback", "remainder"}
    assert parts["execution"] > 0
    assert sum(parts.values()) >= cost["ttft_seconds"] + cost["tpot_seconds"] - 1e-6  # its life, of two tokens


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"{}", 400, "prompt=null: expected one string, or one list of token ids"),
        (b'{"prompt": []}', 400, "the prompt is empty; send at least one token"),
        (b'{"prompt": [1, 5000]}', 400, "token 5000 at place 1 of the prompt is not one of this model's 1024"),
        (b'{"prompt": [1], "max_tokens": 100}', 400, "the prompt's 1 tokens and max_tokens=100 are more than the 100"),
        (b'{"prompt": [1], "model": "gpt"}', 404, "model=\"gpt\": this server has 'counting'"),
        (b" " * 100_000, 413, "the body is longer than 67136 bytes"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_gets_a_sentence(served, body, status, sentence, stream):
    body = body.replace(b'{"', b'{"stream": true, "') if stream else body
    found = served.client.post("/v1/completions", content=body)
    assert found.status_code == status
    assert sentence in found.json()["error"]["message"]
    assert "\n" not in found.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_raises_is_an_error_and_the_next_request_is_fine(served, stream):
    found = served.complete([BROKEN], stream=stream)
    assert found.status_code == 500
    assert found.json()["error"] == {
        "message": "the step that ran this request failed: ArithmeticError: broken on purpose",
        "type": "server_error",
        "param": None,
        "code": 500,
    }
    assert served.complete([1], max_tokens=1).status_code == 200


def test_a_stream_that_breaks_ends_with_the_error(served):
    # The first token is BROKEN itself, and the step after it raises.
    first, error, done = events(served.complete([BROKEN - 1], stream=True).text)
    assert json.loads(first)["choices"][0]["token_ids"] == [BROKEN]
    assert json.loads(error)["error"]["code"] == 500
    assert done == "[DONE]"


def hold(served: Served, prompts: int, stream: bool = True) -> list[socket.socket]:
    """So many clients that wait, the first of them in a step that does not end."""
    served.model.gate.clear()
    body = json.dumps({"prompt": [1], "max_tokens": 5, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    clients = []
    for _ in range(prompts):
        clients.append(socket.create_connection((served.client.base_url.host, served.client.base_url.port)))
        clients[-1].sendall(head + body)
        if len(clients) == 1:
            assert served.model.entered.acquire(timeout=WAIT)
    return clients


def test_a_full_queue_is_503(served):
    clients = hold(served, 3)
    wait_until(lambda: served.engine.load().waiting == 2)
    found = served.complete([1])
    assert found.status_code == 503
    assert found.json()["error"]["message"] == "2 requests are waiting already; try again later"
    for client in clients:
        client.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(served, stream):
    for client in hold(served, 3, stream=stream):
        client.close()
    wait_until(lambda: all(generation.cancelled for generation in served.engine.submitted))
    assert served.engine.load().waiting == 0  # at once, also while a step lasts
    served.model.gate.set()
    assert served.complete([5], max_tokens=1).json()["choices"][0]["token_ids"] == [6]
    assert len(served.model.steps) == 2  # the one that was held, and the one just now
    assert served.engine.load().running == 0


def test_open_requests_are_finished_when_the_server_is_told_to_stop(served):
    (client,) = hold(served, 1)
    served.server.should_exit = True
    wait_until(lambda: not served.server.servers[0].is_serving())  # it takes no more connections
    with pytest.raises(httpx.ConnectError):
        served.client.get("/health")
    served.model.gate.set()
    with client, client.makefile() as answer:
        received = answer.read()
    assert received.count('"token_ids"') == 5
    assert "data: [DONE]" in received


def test_models_and_health(served):
    models = served.client.get("/v1/models").json()
    assert [m["id"] for m in models["data"]] == ["counting"]
    assert models["data"][0]["max_model_len"] == MAX_LEN
    health = served.client.get("/health")
    assert health.status_code == 200
    assert health.json() == {"alive": True, "waiting": 0, "running": 0, "slots": 2}


def test_tritonprobes_pages_are_served_too(served):
    def counted() -> float:
        name = 'tritonprobe_time_to_first_token_seconds_count{model="counting"} '
        lines = served.client.get("/metrics").text.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = counted()
    served.complete([1], max_tokens=2)
    assert counted() == before + 1
    assert served.client.get("/ready").json()["ready"] is runtime.current().is_ready()
    assert served.client.get("/nowhere").status_code == 404
