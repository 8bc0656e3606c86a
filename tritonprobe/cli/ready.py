"""``tritonprobe ready``: an exec probe. Asks ``/ready`` of a process on this machine. Knows HTTP, no Triton."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

import click

from tritonprobe.cli.group import BadInput, Complaint, say
from tritonprobe.cli.serve import served_at
from tritonprobe.documents import read_json

TIMEOUT = 5.0


@click.command()
@click.option("--port", type=click.IntRange(1, 65_535), help="Where it is served.  [default: TRITONPROBE_PORT or 9464]")
@click.option("--addr", help="On which address.  [default: TRITONPROBE_ADDR or 127.0.0.1]")
@click.option("--url", help="The whole URL instead, e.g. http://127.0.0.1:8000/tritonprobe/ready.")
def ready(port: int | None, addr: str | None, url: str | None) -> None:
    """Exit code 0 once the process takes traffic, 1 before, with the reason; for exec probes of containers."""
    settings = served_at(addr, port)
    host = f"[{settings.addr}]" if ":" in settings.addr else settings.addr
    url = url or f"http://{host}:{settings.port}/ready"
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"--url {url}: expected http:// or https://")
    status, said = _ask(url)
    because = said.get("because", "no reason given")
    if status == 200 and said.get("ready") is True:
        say(f"ready: {because}")
        return
    raise Complaint(f"not ready: {because}")


def _rest_of(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(65_536)
    except (OSError, http.client.HTTPException):
        return b""


def _ask(url: str) -> tuple[int, dict[str, object]]:
    # No proxy: the environment's is for the world outside, and a probe asks its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT) as answer:
            status, body = answer.status, answer.read(65_536)
    except urllib.error.HTTPError as error:
        status, body = error.code, _rest_of(error)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no URL
        raise Complaint(f"not ready: {url} does not answer ({getattr(error, 'reason', error)})") from None
    try:
        said = read_json(body)
    except ValueError:
        said = None
    if not isinstance(said, dict) or "ready" not in said:
        raise Complaint(f"not ready: {url} answered {status}, and it is not tritonprobe that answers")
    return status, said
