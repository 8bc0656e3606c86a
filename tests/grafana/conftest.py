"""A probed server with an eventful history, scraped by a real Prometheus that has our rules loaded."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_tool
from tests.export.conftest import Probed, Prometheus, free_port, wait_until_ready
from tritonprobe.bus import Bus
from tritonprobe.export.http import serve
from tritonprobe.ledger import MemoryLedger, Recorder, schema
from tritonprobe.model import ColdCall, LaunchError, Lookup, Trial, Tuning
from tritonprobe.requests.live import Requests
from tritonprobe.requests.threads import this_thread
from tritonprobe.settings import Settings

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "grafana" / "rules"

MATMUL, SOFTMAX = "shop.kernels.matmul_kernel", "shop.kernels.softmax_kernel"
MS = 1_000_000
SECOND = 1000 * MS
LAUNCHED = "tritonprobe_launches_total"


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now

    def go_on(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


@dataclass
class Server:
    """A server's life as the adapter, the ops and the engine tell of it; what they say is counted for real."""

    probed: Probed = field(
        default_factory=lambda: Probed(ledger=MemoryLedger(budget=680), settings=Settings(ttft_slos=(2.5, 10)))
    )
    bus: Bus = field(default_factory=Bus)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        probed = self.probed
        self.bus.subscribe(Recorder(probed.ledger, probed.settings, lambda: probed.ready_unix_ns is not None))
        self.requests = Requests(self.bus, clock=self.clock)

    def start(self) -> None:
        """The first variants, found on the disk and compiled; then ready."""
        ledger = self.probed.ledger
        ledger.set(schema.INFO, ("0.1.0", "3.6.0", "compile-only:cuda:90", "rewrite"), 1)
        ledger.set(schema.GPU_TIMING, ("cupti", "self-test passed"), 1)
        ledger.set(schema.PREWARM_COVERAGE, (), 0.97)
        ledger.add(schema.PREWARMS, ("done",))
        self.launch(SOFTMAX, "N<=1024", 3)
        self.cold_call(SOFTMAX, "N<=1024", "disk", 0.03, (("cache_read", 20 * MS), ("module_load", 10 * MS)))
        ledger.add(schema.WARMUPS, (MATMUL, "M<=16"))
        self.cold_call(MATMUL, "M<=16", "compile", 0.4, (("frontend", 100 * MS), ("ptx", 300 * MS)))
        self.probed.ready_unix_ns = time.time_ns()
        ledger.set(schema.READY, (), self.probed.ready_unix_ns / 1e9)

    def first_requests(self) -> None:
        """Two requests: the first one's batch compiles and tunes for three seconds, and the second one queues.

        Then the first one's batch finds a variant on a slow disk. The client of a third one gives up.
        """
        first, second = self.requests.request("first", "m"), self.requests.request("second", "m")
        with self.requests.step([first]):
            began = self.clock.now
            self.clock.go_on(3)
            trials = (Trial("BLOCK=64", "ok", 0.001, 900 * MS), Trial("BLOCK=256", "out_of_resources", None, 100 * MS))
            tuning = Tuning("16", trials, pruned=2, winner="BLOCK=64", from_disk=False, wall_ns=2 * SECOND)
            phases = (("frontend", SECOND), ("autotune", 2 * SECOND))
            self.launch(MATMUL, "M<=32", 1)
            self.probed.ledger.add(schema.TRIALS, (MATMUL, "M<=32"), 12)
            self.cold_call(MATMUL, "M<=32", "compile", 3, phases, reasons=("M: %16 -> other",), tuning=tuning)
            self.requests.stall(began, self.clock.now, this_thread())
        first.token()
        second.token()
        with self.requests.step([first]):  # the second one waits for this batch, too
            began = self.clock.now
            self.clock.go_on(0.5)
            self.cold_call(SOFTMAX, "N<=64", "disk", 0.5, (("cache_read", SECOND // 2),))
            self.requests.stall(began, self.clock.now, this_thread())
        for _ in range(4):
            self.clock.go_on(0.02)
            first.token()
            second.token()
        first.finish()
        second.finish()
        gone = self.requests.request("gone", "m")  # stands behind nothing, and its client gives up
        self.clock.go_on(4)
        gone.finish(error="Cancelled")

    def troubles(self) -> None:
        """Fallbacks, a launch that raises, a variant never found, a fault of ours, more series than there may be."""
        ledger = self.probed.ledger
        for path, calls in (("triton", 40), ("fallback", 2)):
            ledger.add(schema.OP_CALLS, ("shop.matmul", "M<=32", path), calls)
        ledger.add(schema.FALLBACKS, ("shop.matmul", "M<=32", "unsupported_dtype"))
        ledger.add(schema.FALLBACKS, ("shop.matmul", "M<=32", "out_of_resources"))
        self.bus.publish(LaunchError(MATMUL, "OutOfResources", "launch"))
        ledger.add(schema.COLD_RAISED, ("compile",))
        ledger.add(schema.LOOKUPS_FAILED, (MATMUL, "M<=32"))
        ledger.add(schema.ERRORS, ("requests",))
        ledger.add(schema.SPANS_DROPPED, ("link",), 7)
        ledger.add(schema.CAPTURES_DROPPED, ("bound",), 5)
        ledger.add(schema.FIRST_STEPS, ("<=32", "0"), 0.12)
        ledger.add(schema.CLIENT_ERRORS, ("traceparent",), 3)
        ledger.set(schema.VARIANTS, (MATMUL,), 3)
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), time.time() - 90)
        for i in range(200):
            ledger.add(schema.LAUNCH_ERRORS, (f"shop.kernels.broken_{i}", "RuntimeError"))

    def launch(self, kernel: str, bucket: str, times: int) -> None:
        self.probed.ledger.cell(schema.LAUNCHES, (kernel, bucket))[0] += times
        self.probed.ledger.observe(schema.LAUNCH_HOST, (kernel,), 12e-6)  # as one window saw one of them
        self.window(kernel, bucket, times)

    def window(self, kernel: str, bucket: str, times: int) -> None:
        """A window of GPU times saw all of these launches, 10 us each, and one that it gave up."""
        ledger = self.probed.ledger
        ledger.merge(schema.KERNEL_BUCKET_SECONDS, (kernel, bucket, "cupti"), (times, times * 1e-5))
        ledger.observe(schema.KERNEL_SECONDS, (kernel, bucket), 1e-5)
        ledger.observe(schema.QUEUE_SECONDS, (), 3e-6)
        ledger.add(schema.GPU_LAUNCHES, ("matched",), times)
        ledger.add(schema.GPU_LAUNCHES, ("edge",))
        ledger.add(schema.GPU_BUSY, ("0",), times * 1e-5)
        ledger.add(schema.GPU_WATCHED, ("0",), 0.02)
        ledger.add(schema.GPU_WINDOWS, ("ok",))
        ledger.add(schema.SELF_SECONDS, ("gpu",), 0.001)

    def cold_call(
        self, kernel: str, bucket: str, tier: Any, seconds: float, phases: tuple[tuple[str, int], ...], **more: Any
    ) -> None:
        call = ColdCall(
            kernel=kernel,
            bucket=bucket,
            tier=tier,
            start_ns=0,
            end_ns=int(seconds * SECOND),
            unix_ns=time.time_ns(),
            phases=phases,
            lookups=(Lookup(kernel, bucket, tier),),
            after_ready=self.probed.ready_unix_ns is not None,
            **{"reasons": ("new kernel",), **more},
        )
        self.bus.publish(call)


@dataclass
class Grafana:
    """Asks a real Prometheus what Grafana would ask, with the same variables put in."""

    prometheus: Prometheus
    since: float
    rate_interval: str = "4s"
    chosen: dict[str, str] = field(
        default_factory=lambda: {"job": ".+", "instance": ".+", "kernel": ".+", "model": ".*"}
    )

    def ask(self, target: dict[str, Any], **chosen: str) -> list[dict[str, Any]]:
        """The series that answer a panel's target: ``metric`` and ``values`` of each."""
        promql = self.interpolate(target["expr"], **chosen)
        if target["instant"]:
            found = self.get("query", query=promql)["result"]
            return [{"metric": series["metric"], "values": [series["value"]]} for series in found]
        now = time.time()
        window = {"start": str(now - math.ceil(now - self.since)), "end": str(now), "step": "1"}
        answer: list[dict[str, Any]] = self.get("query_range", query=promql, **window)["result"]
        return answer

    def interpolate(self, promql: str, **chosen: str) -> str:
        values = {"__range": f"{int(time.time() - self.since) + 60}s", "__rate_interval": self.rate_interval}
        values |= self.chosen | chosen
        replaced = re.sub(r"\$(\w+)", lambda found: values[found[1]], promql)
        assert "$" not in replaced, replaced
        return replaced

    def get(self, what: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.prometheus.url}/api/v1/{what}?{query}", timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]


@pytest.fixture(scope="package")
def prometheus_with_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Server]]:
    """A Prometheus that scrapes a server about to start, five times a second, and evaluates our rules each second.

    Both end with this folder's tests: those of others count what happens in the process.
    """
    program = require_tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    server = Server()
    with serve(server.probed) as up:
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"},
            "rule_files": [str(RULES / "*.yaml")],
            "scrape_configs": [{"job_name": "llm", "static_configs": [{"targets": [f"{up.addr}:{up.port}"]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        port = free_port()
        arguments = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("wb") as log, subprocess.Popen(arguments, stdout=log, stderr=log) as process:
            try:
                wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "log")
                yield Prometheus(f"http://127.0.0.1:{port}"), server
            finally:
                process.kill()


@pytest.fixture(scope="package")
def grafana(prometheus_with_rules: tuple[Prometheus, Server]) -> Grafana:
    """The server has lived its life, and Prometheus has seen it."""
    prometheus, server = prometheus_with_rules
    since = time.time()
    prometheus.wait_for_scrapes('tritonprobe_cold_calls_after_ready_total{tier="compile"}', 2)
    server.start()
    prometheus.wait_for_scrapes("tritonprobe_ready_timestamp_seconds", 2)
    server.first_requests()
    prometheus.wait_for_scrapes("tritonprobe_time_to_first_token_seconds_count", 2)
    server.troubles()
    prometheus.wait_for_scrapes("tritonprobe_variants", 2)
    for _ in range(3):  # a rate needs two samples that differ
        server.launch(MATMUL, "M<=32", 100)
        server.launch(SOFTMAX, "N<=1024", 100)
        prometheus.wait_for(LAUNCHED, partial(ne, prometheus.query(LAUNCHED)))
    return Grafana(prometheus, since)
