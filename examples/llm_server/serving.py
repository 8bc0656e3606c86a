"""Puts the pieces together and serves them: model, engine, HTTP app, and the pages of tritonprobe."""

from __future__ import annotations

import logging
import os
import queue
import socket

import click
import torch
import uvicorn

import tritonprobe
from examples.llm_server.config import EngineConfig, ModelConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Failed, Sampling, Token
from examples.llm_server.model import Decoder
from examples.llm_server.server import create_app
from tritonprobe.export import asgi
from tritonprobe.runtime import current
from tritonprobe.story import tell, to_json

log = logging.getLogger("examples.llm_server")

GRACE_SECONDS = 10
"""What open requests get to finish in when the server is told to stop."""
WARMUP_TOKENS = 16
"""A round number, as warm-ups like it: what Triton compiles for multiples of 16 is not what other lengths need."""


class SayingWhere(uvicorn.Server):
    """uvicorn, which says on standard output where it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            host, port = sock.getsockname()[:2]
            click.echo(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def limit_threads(threads: int | None) -> None:
    """Torch's threads on the CPU: by default the cores this process may use less one, and 4 at most.

    The one is for the compiler, the event loop and whoever sends the traffic: threads that wait at a barrier for one
    that has no core make a step several times as long.
    """
    torch.set_num_threads(threads or max(1, min(4, len(os.sched_getaffinity(0)) - 1)))


def build(model: ModelConfig, engine: EngineConfig, name: str, device: str) -> Engine:
    return Engine(Decoder(model, engine.slots, torch.device(device)), engine, name)


def serve(engine: Engine, name: str, max_len: int, sock: socket.socket, *, warmup: bool) -> None:
    """Serves on `sock` until the process is told to stop."""
    runtime = current()

    def on_start() -> None:
        if warmup:
            warm_up(engine)
        tritonprobe.ready()
        log.info("ready: %s on %s", name, runtime.device)

    pages = asgi.app(runtime, report=lambda: to_json(tell(runtime)))
    app = create_app(engine, name, max_len, pages, on_start)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_SECONDS)
    SayingWhere(config).run(sockets=[sock])


def warm_up(engine: Engine) -> None:
    """One short request, as servers run before they call themselves ready. Raises RuntimeError if it fails."""
    told: queue.SimpleQueue[Token | Failed] = queue.SimpleQueue()
    engine.submit("warm-up", [0] * WARMUP_TOKENS, Sampling(max_tokens=2, ignore_eos=True), told.put)
    for what in (told.get(), told.get()):
        if isinstance(what, Failed):
            raise RuntimeError(f"the warm-up failed: {what.message}")
