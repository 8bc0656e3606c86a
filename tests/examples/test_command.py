"""``python -m examples.llm_server`` as a process of its own: the real model, compiling for real, on a free port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 1, "hidden": 64, "heads": 4, "intermediate": 64, "vocab": 300, "max-len": 256, "dtype": "float16"}
TINY = [f"--{name}={value}" for name, value in SIZES.items()]


def start(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.llm_server", "--port", "0", *flags],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@dataclass
class Running:
    process: subprocess.Popen[str]
    client: httpx.Client

    def complete(self, prompt: list[int], max_tokens: int = 2) -> dict[str, Any]:
        found = self.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
        assert found.status_code == 200, found.text
        return found.json()

    def samples(self, family: str) -> float:
        """The sum over all series of a family."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"tritonprobe_{family}"))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Running]:
    """A server that has not warmed up, with an empty cache."""
    with start(tmp_path, "--device", "compile-only:cuda:90", "--no-warmup", *TINY) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert url.startswith("http://127.0.0.1:"), process.communicate(timeout=10)
            with httpx.Client(base_url=url, timeout=120) as client:
                yield Running(process, client)
        finally:
            process.kill()


def test_requests_say_which_stall_they_stood_behind(cold):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(cold.complete, [1, 2, 3])
        while not cold.samples("cold_call_start_timestamp_seconds"):
            assert not first.done()  # it compiles, or is about to
        second = threads.submit(cold.complete, [4, 5, 6])
        own, other = (future.result()["tritonprobe"] for future in (first, second))
    before = own["exposure_seconds"]["before_first_token"]
    assert before["in_batch"] > 0.1  # several kernels were compiled in its own step
    assert before["in_batch"] + before["queued"] <= own["ttft_seconds"]
    assert other["exposure_seconds"]["before_first_token"]["queued"] > 0  # ... while the other one waited for a step
    assert cold.samples("cold_calls_after_ready_total") > 0

    again = cold.complete([1, 2, 3])["tritonprobe"]
    nothing = {"in_batch": 0.0, "queued": 0.0}
    assert again["exposure_seconds"] == {"before_first_token": nothing, "after_first_token": nothing}

    report = cold.client.get("/report").json()
    assert report["device"] == "compile-only:cuda:90"
    assert report["cold_calls"] > 0

    cold.process.send_signal(signal.SIGTERM)
    rest, errors = cold.process.communicate(timeout=20)
    assert cold.process.returncode == -signal.SIGTERM  # it ended by the signal, after it had closed what was open
    assert rest == ""  # the URL was the only line
    assert "Traceback" not in errors


def test_a_warmed_up_server_is_ready_before_it_says_where_it_is(tmp_path):
    with start(tmp_path, "--device", "compile-only:cuda:90", *TINY) as process:
        try:
            assert process.stdout is not None
            with httpx.Client(base_url=process.stdout.readline().strip(), timeout=120) as client:
                warm = Running(process, client)
                assert client.get("/ready").status_code == 200
                cold_calls = warm.samples("cold_call_seconds_count")
                assert cold_calls > 0
                assert warm.samples("cold_calls_after_ready_total") == 0
                warm.complete([7] * 16)  # as long as the warm-up's prompt
                assert warm.samples("cold_calls_after_ready_total") == 0
                warm.complete([7] * 17)  # no multiple of 16: the warm-up missed it
                assert warm.samples("cold_calls_after_ready_total") > 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--heads", "3"), "hidden=256 over heads=3: expected one of 16, 32, 64, 128, 256 a head"),
        (("--device", "tpu"), "--device tpu: expected auto, cuda or compile-only:cuda:90"),
        (
            ("--device", "compile-only:cuda:75"),
            "--device compile-only:cuda:75: expected auto, cuda or compile-only:cuda:90",
        ),
        (("--port", "{taken}"), "cannot listen on 127.0.0.1:{taken}: Address already in use; --port 0 takes a free"),
        (("--slots", "0"), "Invalid value for '--slots': 0 is not in the range x>=1"),
    ],
)
def test_bad_flags_end_it_with_one_sentence(tmp_path, flags, sentence):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = start(tmp_path, *(flag.replace("{taken}", port) for flag in flags))
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert f"Error: {sentence.replace('{taken}', port)}" in errors
    assert "Traceback" not in errors
