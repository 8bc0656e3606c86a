"""What a scrape of a ledger, or of a directory of them, shows; and programs that count in files of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tritonprobe.ledger import FileLedger, HistogramSample, Readable, Sample, schema

Values = dict[tuple[str, ...], float]


def values(ledger: Readable, metric: schema.Metric) -> Values:
    """The samples of one metric that is no histogram."""
    samples = [s for family in ledger.collect() if family.metric is metric for s in family.samples]
    assert len({s.labels for s in samples}) == len(samples)
    return {s.labels: s.value for s in samples if isinstance(s, Sample)}


def histogram(ledger: Readable, metric: schema.Metric, *labels: str) -> HistogramSample:
    found = [s for family in ledger.collect() if family.metric is metric for s in family.samples]
    return next(s for s in found if isinstance(s, HistogramSample) and s.labels == labels)


def everything(ledger: Readable) -> dict[tuple[str, tuple[str, ...]], tuple[float, ...]]:
    """Every number of a scrape, by metric and labels."""
    found: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
    for family in ledger.collect():
        for s in family.samples:
            key = (family.metric.name, s.labels)
            assert key not in found
            found[key] = (s.value,) if isinstance(s, Sample) else (*s.counts, s.sum)
    return found


def counters(ledger: Readable) -> dict[tuple[str, tuple[str, ...]], tuple[float, ...]]:
    """Of every number those that must never fall."""
    summed = {metric.name for metric in schema.METRICS if metric.kind in ("counter", *schema.DISTRIBUTIONS)}
    return {key: found for key, found in everything(ledger).items() if key[0] in summed}


SMALL = 1 << 16
"""Bytes of a file for some hundred series."""


def dies(folder: Path, *amounts: float, kernel: str = "k") -> None:
    """A process that counted and is dead: nobody holds its file any more."""
    ledger = FileLedger(folder, size=SMALL)
    for amount in amounts:
        ledger.add(schema.LAUNCHES, (kernel, "all"), amount)
        ledger.add(schema.COLD_SECONDS, (kernel, "ptx", "0"), amount / 10)
        ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), amount / 10)
    ledger.set(schema.VARIANTS, (kernel,), 7)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


PREAMBLE = """
import os, sys, threading, time
from pathlib import Path
from tritonprobe.ledger import DirectoryReader, FileLedger, open_ledger, schema
K = ("k", "all")
"""


def program(code: str, *args: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A Python program that may count; it talks over its pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def finished(code: str, *args: str | Path, env: dict[str, str] | None = None) -> tuple[str, str]:
    """What such a program said on stdout and stderr, once it has ended well."""
    running = program(code, *args, env=env)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    return out, err


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked child, without what pytest would do at its end. Returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def at_line(step: int, module: ModuleType, interrupt: Callable[[], object], work: Callable[[], object]) -> bool:
    """Does `work`, and `interrupt` before the step-th line of `module` that it comes to. Whether it came so far.

    Functions that only compute are passed over.
    """
    left = step
    computing = ("_add_up", "exact", "<genexpr>", "<listcomp>", "<dictcomp>")

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__ or frame.f_code.co_name in computing:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return left < 0
