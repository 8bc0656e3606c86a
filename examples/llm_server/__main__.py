"""The command: ``python -m examples.llm_server``. Reads the flags, chooses the device, and starts the rest.

Standard output is one line, the server's URL, once it takes requests; everything else goes to standard error.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

import click

import tritonprobe
from examples.llm_server.config import DTYPES, ConfigError, EngineConfig, ModelConfig
from tritonprobe import SettingError


@click.command(context_settings={"show_default": True, "max_content_width": 120})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8000, type=click.IntRange(0, 65_535), help="Port to listen on; 0 takes a free one.")
@click.option("--device", default="auto", help="auto, cuda, or compile-only:cuda:90: real compiler and caches, no GPU.")
@click.option("--name", default="tiny-llama", help="The model's name in requests and metrics.")
@click.option("--layers", default=2, help="Decoder layers.")
@click.option("--hidden", default=256, help="Width of the model.")
@click.option("--heads", default=4, help="Query heads.")
@click.option("--kv-heads", default=2, help="Key and value heads; a divisor of --heads.")
@click.option("--intermediate", default=768, help="Width of the MLP.")
@click.option("--vocab", default=1024, help="Token ids; text needs 256 of them.")
@click.option("--max-len", default=8192, help="Tokens of a request, prompt and answer.")
@click.option("--dtype", default="float32", type=click.Choice(DTYPES), help="Type of weights and cache.")
@click.option("--seed", default=0, help="Seed of the weights.")
@click.option("--slots", default=8, type=click.IntRange(min=1), help="Requests that run at once.")
@click.option("--prefill-tokens", default=8192, type=click.IntRange(min=1), help="Prompt tokens a step takes in.")
@click.option("--queue", default=256, type=click.IntRange(min=1), help="Requests that may wait for a slot.")
@click.option(
    "--threads",
    default=None,
    type=click.IntRange(min=1),
    help="CPU threads of torch.  [default: one less than cores, up to 4]",
)
@click.option("--warmup/--no-warmup", default=True, help="Run one short request before the server calls itself ready.")
def main(
    host: str,
    port: int,
    device: str,
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    max_len: int,
    dtype: str,
    seed: int,
    slots: int,
    prefill_tokens: int,
    queue: int,
    threads: int | None,
    warmup: bool,
) -> None:
    """Serves a small decoder with random weights on an OpenAI-compatible API, instrumented with tritonprobe."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = ModelConfig(layers, hidden, heads, kv_heads, intermediate, vocab, max_len, dtype, seed)
        where = _instrument(device)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    sock = _listen(host, port)
    # Only now: importing the kernels probes them, and the device has to be known by then.
    from examples.llm_server import serving

    serving.limit_threads(threads)
    engine = serving.build(config, EngineConfig(max_len, vocab, slots, prefill_tokens, queue), name, where)
    try:
        serving.serve(engine, name, max_len, sock, warmup=warmup)
    except KeyboardInterrupt:
        sys.exit(130)


def _instrument(device: str) -> str:
    """Watches every kernel of the process, on `device`. Returns where the tensors live, in torch's words."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else os.environ.get("TRITONPROBE_DEVICE") or "compile-only:cuda:90"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device here; --device compile-only:cuda:90 needs none")
    try:
        tritonprobe.configure()
    except SettingError as error:
        raise ConfigError(str(error)) from None  # the environment's, not the flag's
    try:
        tritonprobe.configure(device=None if device == "cuda" else device)
        tritonprobe.instrument()
    except SettingError as error:
        raise ConfigError(f"--device {device}: expected auto, cuda or compile-only:cuda:90 ({error})") from None
    except RuntimeError as error:  # an unsupported Triton, in one sentence
        raise ConfigError(str(error)) from None
    return "cuda" if device == "cuda" else "cpu"


def _listen(host: str, port: int) -> socket.socket:
    """A socket bound before anything expensive happens, so that a port in use costs nothing to find out."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        problem = f"cannot listen on {host}:{port}: {error.strerror}; --port 0 takes a free port"
        raise click.UsageError(problem) from None
    return sock


if __name__ == "__main__":
    main(prog_name="python -m examples.llm_server")
