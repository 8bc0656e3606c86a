"""The ASGI app under real servers: alone on uvicorn, and mounted in Starlette."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

import tritonprobe
from tests.export.conftest import Probed
from tritonprobe import runtime
from tritonprobe.export.asgi import app
from tritonprobe.ledger import schema
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings


@contextmanager
def running(application: Any) -> Iterator[str]:
    """The application on uvicorn; `lifespan="on"` fails unless it answers that protocol."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, lifespan="on", log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.mark.parametrize("mounted", [False, True], ids=["alone", "mounted"])
def test_the_paths_of_the_server(mounted: bool, probed: Probed) -> None:
    probed.ledger.add(schema.LAUNCHES, ("softmax", "N=8"), 5)
    ours = app(probed, report=lambda: {"hello": "world"})
    application, prefix = (Starlette(routes=[Mount("/probe", ours)]), "/probe") if mounted else (ours, "")
    with running(application) as url:
        base = url + prefix
        metrics = httpx.get(f"{base}/metrics")
        assert 'tritonprobe_launches_total{bucket="N=8",kernel="softmax"} 5.0\n' in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        openmetrics = httpx.get(f"{base}/metrics", headers={"Accept": "application/openmetrics-text"})
        assert openmetrics.text.endswith("# EOF\n")
        assert httpx.get(f"{base}/report").json() == {"hello": "world"}
        assert "/metrics" in httpx.get(f"{base}/").text
        assert httpx.get(f"{base}/nothing").status_code == 404
        assert httpx.get(f"{base}/ready").status_code == 503
        probed.ready_unix_ns = 1_790_000_000_000_000_000
        assert httpx.get(f"{base}/ready").status_code == 200
        head = httpx.head(f"{base}/metrics")
        assert (head.status_code, head.content) == (200, b"")
        refused = httpx.post(f"{base}/metrics", content=b"x" * 100_000)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_the_programs_own_app_has_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runtime(Settings())
    monkeypatch.setattr(runtime, "_current", made)
    with running(tritonprobe.asgi_app()) as url:
        assert "/report" in httpx.get(f"{url}/").text
        assert httpx.get(f"{url}/report").json()["cold_calls"] == 0
        with tritonprobe.cold_call("planted.compiler"):
            pass
        assert httpx.get(f"{url}/report").json()["cold_calls"] == 1
        assert httpx.get(f"{url}/ready").status_code == 503
        tritonprobe.ready()
        assert httpx.get(f"{url}/ready").status_code == 200
