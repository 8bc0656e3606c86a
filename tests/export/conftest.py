"""A real Prometheus for tests, and the least that an exporter can serve.

Other rooms take the fixture by importing it: ``from tests.export.conftest import prometheus_server``.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_tool
from tritonprobe.ledger import Ledger, MemoryLedger
from tritonprobe.ledger.schema import ERRORS
from tritonprobe.settings import Settings
from tritonprobe.shapes.census import Census

Result = dict[tuple[tuple[str, str], ...], float]
"""Values by their labels, sorted, without those that Prometheus adds."""


@dataclass
class Probed:
    """What a runtime offers to exporters."""

    ledger: Ledger = field(default_factory=MemoryLedger)
    settings: Settings = field(default_factory=lambda: Settings(port=0))
    ready_unix_ns: int | None = None
    ready_because: str | None = None

    def census(self) -> Census:
        return Census()

    def fault(self, part: str) -> None:
        self.ledger.add(ERRORS, (part,))


@pytest.fixture
def probed() -> Probed:
    return Probed()


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@dataclass
class Prometheus:
    """A server that is up and scrapes five times a second, from its fifth second on."""

    url: str

    def query(self, promql: str) -> Result:
        """The result of an instant query now."""
        query = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success"
        dull = {"__name__", "instance", "job"}
        return {
            labelled(**{k: v for k, v in found["metric"].items() if k not in dull}): float(found["value"][1])
            for found in answer["data"]["result"]
        }

    def query_exemplars(self, promql: str) -> list[dict[str, Any]]:
        """The exemplars of the last minute, each with the labels of its ``series``."""
        now = time.time()
        query = urllib.parse.urlencode({"query": promql, "start": now - 60, "end": now + 60})
        with urllib.request.urlopen(f"{self.url}/api/v1/query_exemplars?{query}", timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success"
        return [{"series": found["seriesLabels"], **one} for found in answer["data"] for one in found["exemplars"]]

    def wait_for(
        self, promql: str, expected: Mapping[tuple[tuple[str, str], ...], float] | Callable[[Result], bool]
    ) -> Result:
        """Asks until the answer is `expected`, ten seconds at most; the last answer then fails the test."""
        deadline = time.monotonic() + 10
        while True:
            found = self.query(promql)
            if expected(found) if callable(expected) else found == expected:
                return found
            if time.monotonic() > deadline:
                assert found == expected, promql
            time.sleep(0.05)

    def wait_for_scrapes(self, promql: str, samples: int) -> None:
        """Waits until one series has been scraped so many times."""
        self.wait_for(f"count_over_time({promql}[1m])", lambda found: min(found.values(), default=0) >= samples)


@pytest.fixture
def prometheus_server(tmp_path: Path) -> Iterator[Callable[[Sequence[str]], Prometheus]]:
    """Starts a Prometheus that scrapes `targets` (URLs or host:port). Skipped by name where there is none."""
    program = require_tool("prometheus")
    running: list[subprocess.Popen[bytes]] = []

    def start(targets: Sequence[str]) -> Prometheus:
        folder = tmp_path / f"prometheus-{len(running)}"
        folder.mkdir()
        hosts = [target.removeprefix("http://").rstrip("/") for target in targets]
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
            "scrape_configs": [{"job_name": "tritonprobe", "static_configs": [{"targets": hosts}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        port = free_port()
        with (folder / "log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    [
                        program,
                        f"--config.file={folder / 'prometheus.yml'}",
                        f"--storage.tsdb.path={folder / 'data'}",
                        f"--web.listen-address=127.0.0.1:{port}",
                        "--enable-feature=exemplar-storage",
                    ],
                    stdout=log,
                    stderr=log,
                )
            )
        wait_until_ready(f"http://127.0.0.1:{port}", running[-1], folder / "log")
        return Prometheus(f"http://127.0.0.1:{port}")

    yield start
    for process in running:
        process.kill()
        process.wait()
    for i in range(len(running)):
        shutil.rmtree(tmp_path / f"prometheus-{i}" / "data", ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    pytest.fail(f"Prometheus did not come up:\n{log.read_text(errors='replace')}")
