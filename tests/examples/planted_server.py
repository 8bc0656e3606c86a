"""The example server with a device that takes 10 ms a step, and a stall of known length in one of its steps.

A step begins every 15 ms, so that what the host does in between, on a machine that others use as well, does not move
the next one: what moves it is the stall.

Run as ``python -m tests.examples.planted_server PLANT CLIENTS``: PLANT is ``none``, ``kernel`` (a real kernel that
takes about half a second to compile) or ``sleep`` (half a second in a `cold_call`, as of another compiler). The engine
waits until all clients are there and takes them in the order of their prompts, so that two runs differ by the stall
alone. At the end it prints its own log and what tritonprobe charged, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click
import torch
import triton
import triton.language as tl
import uvicorn

import tritonprobe
from examples.llm_server.config import EngineConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Generation, Token
from examples.llm_server.model import Piece
from examples.llm_server.server import create_app
from examples.llm_server.serving import SayingWhere
from tritonprobe.export import asgi
from tritonprobe.runtime import current

STEP = 10_000_000
PERIOD = 15_000_000
SLEEP = 0.5
SLOTS = 8
STALLED_STEP = 12
now = time.monotonic_ns


@triton.jit
def slow_to_compile_kernel(x_ptr, n, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    for i in tl.static_range(ROUNDS):
        x = tl.where(x > i, tl.sin(x) * i + tl.exp(x), tl.cos(x) - tl.log(x + i + 1))
    tl.store(x_ptr + at, x, mask=at < n)


class Planted:
    """The next token is the last one plus one, after one step's time; in one step something stalls, too."""

    def __init__(self, plant: str) -> None:
        self._plant = plant
        self._steps = 0
        self._due = 0
        self._values = torch.zeros(64)
        self.stall: tuple[int, int] | None = None
        self._launch(1)  # what a process does once is behind us

    def next_tokens(self, pieces: Sequence[Piece]) -> list[int]:
        self._due = (self._due or now()) + PERIOD
        self._steps += 1
        if self._steps == STALLED_STEP and self._plant != "none":
            start = now()
            self._cold()
            self.stall = (start, now())
            self._due += self.stall[1] - start
        time.sleep((max(self._due, now() + STEP) - now()) / 1e9)
        return [piece.tokens[-1] + 1 for piece in pieces]

    def _cold(self) -> None:
        if self._plant == "kernel":
            self._launch(16)
            return
        with tritonprobe.cold_call("planted.compiler", kind="planted"):
            time.sleep(SLEEP)

    def _launch(self, rounds: int) -> None:
        slow_to_compile_kernel[(1,)](self._values, 64, ROUNDS=rounds, BLOCK=64)


class Logged(Engine):
    """Begins when all clients are there, and writes down when each request came, ran and went."""

    def __init__(self, *args: Any, clients: int) -> None:
        super().__init__(*args)
        self._clients = clients
        self._expected = clients
        self.came: dict[str, int] = {}
        self.went: dict[str, int] = {}
        self.client: dict[str, int] = {}
        self.steps: list[tuple[int, int, list[str]]] = []

    def submit(self, request_id: str, prompt: list[int], sampling: Any, emit: Callable[..., None], *more: Any) -> Any:
        def going(what: Any) -> None:
            if not isinstance(what, Token) or what.finish_reason is not None:
                self.went[request_id] = now()
            emit(what)

        self.came[request_id] = now()
        self.client[request_id] = prompt[0]
        return super().submit(request_id, prompt, sampling, going, *more)

    def _admit(self) -> list[Generation]:
        if self._expected:
            if len(self._waiting) < self._expected:
                return []
            self._expected = 0
            in_order = sorted(self._waiting, key=lambda generation: generation.prompt)
            self._waiting.clear()
            self._waiting.extend(in_order)
        return super()._admit()

    def _step(self, batch: list[Generation]) -> None:
        ids = [generation.id for generation in batch]
        start = now()
        super()._step(batch)
        self.steps.append((start, now(), ids))


def main(plant: str, clients: int) -> None:
    tritonprobe.instrument()
    model = Planted(plant)
    engine = Logged(model, EngineConfig(1000, 1024, SLOTS, queue=clients), "planted", clients=clients)
    app = create_app(engine, "planted", 1000, asgi.app(current()), tritonprobe.ready)
    config = uvicorn.Config(app, port=0, log_level="warning")
    with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has shut down
        SayingWhere(config).run(sockets=[config.bind_socket()])
    costs = {
        cost.id: {
            "before": [cost.before.in_batch_ns, cost.before.queued_ns],
            "after": [cost.after.in_batch_ns, cost.after.queued_ns],
            "parts": None if cost.parts is None else [getattr(cost.parts, name) for name in cost.parts.__slots__],
            "life": cost.end_ns - cost.start_ns,
        }
        for cost in current().requests
    }
    log = {
        "stall": model.stall,
        "came": engine.came,
        "went": engine.went,
        "client": engine.client,
        "steps": engine.steps,
        "costs": costs,
    }
    click.echo(json.dumps(log))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
