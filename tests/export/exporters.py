"""Exporter processes for tests, and what a scrape of one says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Each sample by its name and its labels, sorted."""


@dataclass
class Exporter:
    """``tritonprobe serve`` as a process."""

    url: str
    process: subprocess.Popen[str]

    def end(self, how: int) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@contextmanager
def exporter(directory: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Exporter]:
    command = [sys.executable, "-m", "tritonprobe", "serve", str(directory), "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        assert said.endswith("/metrics\n"), process.stderr.read()
        yield Exporter(said.removesuffix("/metrics\n"), process)
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: object) -> str:
    """What ``tritonprobe serve`` says, in one line, when it ends with exit code 2."""
    command = [sys.executable, "-m", "tritonprobe", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("Error: ")


def get(url: str, timeout: float = 10.0) -> tuple[int, str]:
    """The status and text of a URL."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(url: str, timeout: float = 10.0) -> Scrape:
    """All samples of ``/metrics``; each of them only once."""
    status, text = get(f"{url}/metrics", timeout)
    assert status == 200, text
    samples = [(s.name, tuple(sorted(s.labels.items())), s.value) for f in parse(text) for s in f.samples]
    found = {(name, labels): value for name, labels, value in samples}
    assert len(found) == len(samples)
    return found


def total(found: Scrape, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(value for (n, have), value in found.items() if n == name and labels.items() <= dict(have).items())


def until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Waits for `holds` to hold, for so long."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
