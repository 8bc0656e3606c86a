"""How long a scrape takes: a ledger directory with many series, an exporter process of its own, and a client's clock.

Touches no Triton. The exporter is `tritonprobe serve` as users run it, asked over loopback; what is timed is the whole
answer, from the request to the last byte.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonprobe.ledger import FileLedger, open_ledger
from tritonprobe.ledger.schema import COLD_SECONDS, LAUNCHES, LOOKUPS
from tritonprobe.proving.intervals import Interval, interval
from tritonprobe.proving.processes import MeasuringError

BUDGET_SECONDS = 0.05
BUCKETS = 40
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """``lines`` of samples in each answer, ``size`` bytes, and the seconds each took."""

    lines: int
    size: int
    seconds: tuple[float, ...]
    interval: Interval

    @property
    def good(self) -> bool:
        return self.interval.high < BUDGET_SECONDS


def measure(series: int, repeat: int, seed: int) -> Scrape:
    """Asks `repeat` times for about `series` series. Raises MeasuringError if the exporter does not come up."""
    with tempfile.TemporaryDirectory(prefix="tritonprobe-scrape-") as folder:
        ledger = open_ledger(folder, budget=series * 2)
        try:
            _fill(ledger, series)
            with _exporter(Path(folder)) as url:
                body = _ask(url)  # the first answer also reads what later ones remember
                seconds = tuple(_timed(url) for _ in range(repeat))
        finally:
            ledger.close()
    lines = sum(not line.startswith(b"#") for line in body.splitlines())
    return Scrape(lines, len(body), seconds, interval(seconds, seed))


def body(scrape: Scrape, series: int, seed: int) -> dict[str, Any]:
    """The figures for the JSON document."""
    return {
        "series_asked": series,
        "lines": scrape.lines,
        "bytes": scrape.size,
        "seed": seed,
        "budget_seconds": BUDGET_SECONDS,
        "median_seconds": scrape.interval.median,
        "interval_seconds": [scrape.interval.low, scrape.interval.high],
        "seconds": list(scrape.seconds),
    }


def _fill(ledger: FileLedger, series: int) -> None:
    """Kernels with launches, lookups and phases, as a program has them; each lookup makes a memory series as well."""
    for i in range(series // (3 * BUCKETS + 1)):
        kernel = f"somewhere.kernels.kernel_{i}"
        ledger.add(COLD_SECONDS, (kernel, "cubin", "0"), 0.123 * i)
        for j in range(BUCKETS):
            bucket = f"M<={1 << (j % 20)},N={j}"
            ledger.add(LAUNCHES, (kernel, bucket), 1000.0 + j)
            ledger.add(LOOKUPS, (kernel, bucket, "compile"))


@contextmanager
def _exporter(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tritonprobe", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            if not url.startswith("http://"):
                _, said = process.communicate(timeout=ANSWER_SECONDS)
                raise MeasuringError(f"the exporter did not come up: {said.strip() or 'no message'}")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)


def _ask(url: str) -> bytes:
    # Loopback only: an environment's proxies are none of its business.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_SECONDS) as response:
            body: bytes = response.read()
    except OSError as error:
        raise MeasuringError(f"the exporter did not answer: {error}") from None
    return body


def _timed(url: str) -> float:
    start = time.perf_counter()
    _ask(url)
    return time.perf_counter() - start
