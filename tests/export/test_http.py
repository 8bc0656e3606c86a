"""The server over real sockets: methods, bad clients, bounds, ports in use, forks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.export.conftest import Probed, free_port
from tritonprobe.export import http
from tritonprobe.export.http import PortInUse, Server, serve
from tritonprobe.ledger import schema
from tritonprobe.settings import SettingError, Settings


@pytest.fixture
def server(probed: Probed) -> Iterator[Server]:
    with serve(probed, report=lambda: {"hello": "world"}) as up:
        yield up


def raw(server: Server, data: bytes) -> bytes:
    """Sends bytes, says nothing more, and returns everything that comes back."""
    with socket.create_connection((server.addr, server.port), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while more := client.recv(65536):
            answer += more
        return answer


def test_it_listens_on_loopback_unless_told_otherwise(server: Server) -> None:
    assert server.addr == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}"


def test_the_settings_say_where(probed: Probed) -> None:
    port = free_port()
    probed.settings = Settings(addr="127.0.0.2", port=port)
    with serve(probed) as up:
        assert up.url == f"http://127.0.0.2:{port}"
        assert httpx.get(f"{up.url}/ready").status_code == 503
    with serve(probed, addr="127.0.0.1", port=0) as up:
        assert up.addr == "127.0.0.1"
        assert up.port != port


def test_paths_answer(server: Server, probed: Probed) -> None:
    metrics = httpx.get(f"{server.url}/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert metrics.headers["server"] == "tritonprobe"
    assert "tritonprobe_cold_calls_after_ready_total" in metrics.text
    openmetrics = httpx.get(f"{server.url}/metrics", headers={"Accept": "application/openmetrics-text"})
    assert openmetrics.text.endswith("# EOF\n")
    assert httpx.get(f"{server.url}/report").json() == {"hello": "world"}
    assert "/metrics" in httpx.get(server.url).text
    assert httpx.get(f"{server.url}/nothing").status_code == 404


def test_ready_turns_from_503_to_200(server: Server, probed: Probed) -> None:
    assert httpx.get(f"{server.url}/ready").status_code == 503
    probed.ready_unix_ns = 1_790_000_000_000_000_000
    assert httpx.get(f"{server.url}/ready").status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/ready", "/", "/nothing"])
def test_head_is_get_without_a_body(path: str, server: Server) -> None:
    get, head = httpx.get(server.url + path), httpx.head(server.url + path)
    assert head.status_code == get.status_code
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(method: str, server: Server) -> None:
    response = httpx.request(method, f"{server.url}/metrics")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"


def test_a_port_in_use_is_one_sentence(server: Server, probed: Probed) -> None:
    with pytest.raises(PortInUse) as caught:
        serve(probed, port=server.port)
    choose = "choose a free one, or 0 for any (--port, serve(port=...), or TRITONPROBE_PORT)"
    expected = f"port {server.port} on 127.0.0.1 is in use; {choose}"
    assert str(caught.value) == expected
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_there_is_not_is_one_sentence(port: int, probed: Probed) -> None:
    with pytest.raises(SettingError, match=f"^port={port}: expected a whole number from 0 to 65535$"):
        serve(probed, port=port)


@pytest.mark.parametrize("addr", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours_is_one_sentence(addr: str, probed: Probed) -> None:
    with pytest.raises(OSError, match=r"cannot listen on port 0 of .*; check TRITONPROBE_ADDR and TRITONPROBE_PORT"):
        serve(probed, addr=addr)


def test_a_closed_server_frees_its_port_and_closes_twice(probed: Probed) -> None:
    up = serve(probed)
    httpx.get(up.url)
    up.close()
    up.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(up.url)
    with serve(probed, port=up.port) as again:
        assert again.port == up.port


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"BREW /metrics HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: text/plain;\r\n version=\xff\xfe\r\n\r\n",
    ],
)
def test_bad_clients_get_an_error_and_harm_nobody(
    data: bytes, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = raw(server, data)
    assert b"Traceback" not in answer
    assert httpx.get(f"{server.url}/ready").status_code == 503
    assert capfd.readouterr() == ("", "")


def test_a_client_that_leaves_early_harms_nobody(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        with socket.create_connection((server.addr, server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert capfd.readouterr() == ("", "")


def test_a_silent_client_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Handler, "timeout", 0.2)
    with socket.create_connection((server.addr, server.port), timeout=10) as client:
        assert client.recv(1) == b""


def test_a_client_that_drips_bytes_is_let_go(probed: Probed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.3)
    with serve(probed) as up, socket.create_connection((up.addr, up.port), timeout=0.05) as client:

        def is_gone() -> bool:
            try:
                client.send(b"G")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert any(is_gone() for _ in range(200))


def test_connections_are_bounded_and_come_free(probed: Probed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    with serve(probed) as up:
        idle = [socket.create_connection((up.addr, up.port), timeout=10) for _ in range(2)]
        with pytest.raises(httpx.TransportError):
            httpx.get(up.url)
        for client in idle:
            client.close()

        def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(up.url).status_code == 200
            return False

        assert any(is_served() for _ in range(200))


def test_a_connection_that_no_thread_can_take_leaves_its_place_to_others(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    with serve(probed) as up:
        with monkeypatch.context() as exhausted:
            exhausted.setattr(socketserver.ThreadingMixIn, "process_request", refuse)
            with pytest.raises(httpx.TransportError):
                httpx.get(up.url)
        assert httpx.get(up.url).status_code == 200


def test_concurrent_scrapes_all_see_counters_that_only_rise(server: Server, probed: Probed) -> None:
    stop = threading.Event()
    cell = probed.ledger.cell(schema.LAUNCHES, ("k", "all"))
    probed.ledger.add(schema.LOOKUPS, ("k", "all", "compile"))

    def count() -> None:
        while not stop.is_set():
            cell[0] += 1

    def scrapes() -> list[tuple[float, float]]:
        return [read(httpx.get(f"{server.url}/metrics").text) for _ in range(5)]

    def read(text: str) -> tuple[float, float]:
        rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        launches = float(rows['tritonprobe_launches_total{bucket="all",kernel="k"}'])
        return launches, float(rows['tritonprobe_cache_lookups_total{bucket="all",kernel="k",tier="memory"}'])

    counter = threading.Thread(target=count)
    counter.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: scrapes(), range(8)))
    finally:
        stop.set()
        counter.join()
    for seen in answers:
        assert len(seen) == 5
        assert seen == sorted(seen)


@pytest.mark.parametrize("act", [Server.close, lambda up: None], ids=["closing", "keeping"])
def test_a_forked_child_neither_holds_the_port_nor_hangs(probed: Probed, act: Callable[[Server], None]) -> None:
    up = serve(probed)
    release, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs is killed
        try:
            os.close(held)
            act(up)
            os.read(release, 1)  # lives until the parent is done
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        assert httpx.get(f"{up.url}/ready").status_code == 503
        up.close()
        with serve(probed, port=up.port) as again:
            assert httpx.get(f"{again.url}/ready").status_code == 503
    finally:
        os.close(held)
        os.close(release)
        assert os.waitpid(pid, 0)[1] == 0
