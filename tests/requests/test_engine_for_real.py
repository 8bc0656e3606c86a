"""The whole way: a kernel compiles in a worker process, and the request that the server's process holds is charged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings

ROOT = Path(__file__).parents[2]
STEP = 7
MS = 1_000_000


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    env = {
        **os.environ,
        "TRITONPROBE_DIR": str(tmp_path / "ledger"),
        "TRITONPROBE_ENGINE": "llm",
        "TRITONPROBE_DEVICE": "compile-only:cuda:90",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "tests.requests.worker_process", str(STEP)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, bufsize=1, **pipes) as process:  # type: ignore[call-overload]  # the pipes
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.write("\n")


def test_a_compile_in_a_worker_is_charged_to_the_request_of_the_server(worker: subprocess.Popen[str], tmp_path: Path):
    assert worker.stdin is not None
    assert worker.stdout is not None
    server = Runtime(Settings(dir=str(tmp_path / "ledger"), engine="llm"))
    core = Runtime(Settings(dir=str(tmp_path / "ledger"), engine="llm"))
    try:
        inside, waiting = server.live.request("inside"), server.live.request("waiting")
        with core.live.step([("inside", 1)], id=STEP):
            worker.stdin.write("\n")
            start, end = map(int, worker.stdout.readline().split())
        for request in (inside, waiting):
            request.token()
            request.finish()
        costs = {cost.id: cost.before for cost in server.requests}
        assert costs["inside"].queued_ns == costs["waiting"].in_batch_ns == 0
        assert costs["inside"].in_batch_ns == costs["waiting"].queued_ns
        assert end - start - 5 * MS <= costs["inside"].in_batch_ns <= end - start
    finally:
        server.live.leave()
        core.live.leave()
