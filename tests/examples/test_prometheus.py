"""A real Prometheus beside the real server:

the first cold call after ready is an increase, not a series that appears.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import require_tool
from tests.examples.test_command import TINY, Running, start
from tests.export.conftest import Prometheus, labelled, prometheus_server  # noqa: F401  # a fixture

TOTAL = "tritonprobe_cold_calls_after_ready_total"


@pytest.fixture
def warmed_up(tmp_path: Path) -> Iterator[Running]:
    with start(tmp_path, "--device", "compile-only:cuda:90", *TINY) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert url.startswith("http://127.0.0.1:"), process.communicate(timeout=10)
            with httpx.Client(base_url=url, timeout=120) as client:
                yield Running(process, client)
        finally:
            process.kill()


def test_the_first_cold_call_after_ready_is_an_increase(
    warmed_up: Running,
    prometheus_server: Callable[[list[str]], Prometheus],  # noqa: F811
) -> None:
    assert warmed_up.client.get("/ready").status_code == 200
    assert warmed_up.samples("cold_calls_after_ready_total") == 0
    prometheus = prometheus_server([str(warmed_up.client.base_url)])
    compiled = labelled(tier="compile")
    prometheus.wait_for(f"{TOTAL} == 0", lambda found: compiled in found)

    warmed_up.complete([1] * 17)  # the warm-up's prompt was a multiple of 16, this one is not

    counted = warmed_up.samples('cold_calls_after_ready_total{tier="compile"}')
    assert counted > 0
    prometheus.wait_for(TOTAL, lambda found: found.get(compiled) == counted)
    seen = prometheus.wait_for(f"increase({TOTAL}[1m])", lambda found: found.get(compiled, 0) > 0)
    assert seen[compiled] >= 1


def test_what_the_server_exports_is_clean(warmed_up: Running) -> None:
    warmed_up.complete([1] * 17)
    metrics = warmed_up.client.get("/metrics").text
    done = subprocess.run(
        [require_tool("promtool"), "check", "metrics"], input=metrics, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
