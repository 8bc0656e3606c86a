"""A vLLM server under ``tritonprobe run``, or alone, and a client that keeps a clock. Standard library only.

The server is `vllm serve` as people run it; what it says goes to a log file. Its numbers are read where they lie, in
the ledger directory, so that a reading takes no part of any process that is measured.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonprobe.cli.switching import Followed, answers
from tritonprobe.ledger import DirectoryReader, HistogramSample, Sample, signs

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
KV_BYTES = str(8 << 30)  # so that several engines fit on one GPU
UP_SECONDS = 240.0
DOWN_SECONDS = 60.0

Reading = dict[tuple[str, ...], float]
"""Name and label values -> value; a histogram has two, its sum and its count."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP request for several prompts. ``first``: when each had its first token; ``end``: the last byte."""

    status: int
    first: float | None
    end: float
    texts: tuple[str, ...]
    tokens: int
    error: str | None = None


@dataclass(slots=True)
class Server:
    """One `vllm serve`. ``folder`` takes its caches, log, ledger and traces; caches outlive it."""

    site: Path
    folder: Path
    mode: str
    port: int
    watched: bool
    engine: Sequence[str]
    name: str
    windows: str = "off"
    options: Sequence[str] = ()  # of `tritonprobe run`
    extra: Mapping[str, str] = field(default_factory=dict)  # of its environment
    process: subprocess.Popen[bytes] | None = None
    up_seconds: float = 0.0
    _reader: DirectoryReader | None = field(default=None)

    @property
    def ledger(self) -> Path:
        return self.folder / f"ledger-{self.name}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def traces(self) -> Path:
        return self.folder / f"traces-{self.name}"

    def command(self) -> list[str]:
        serve = [
            *self.engine, "serve", str(self.site / "_tiny"), "--served-model-name", MODEL, "--load-format", "dummy",
            "--attention-backend", "TRITON_ATTN", "--max-model-len", "8192", "--kv-cache-memory-bytes", KV_BYTES,
            "--gpu-memory-utilization", "0.1",
            "--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(self.port),
            "--profiler-config.profiler=torch", f"--profiler-config.torch_profiler_dir={self.traces}",
        ]  # fmt: skip
        if self.mode == "eager":
            serve.append("--enforce-eager")
        if not self.watched:
            return serve
        run = [sys.executable, "-m", "tritonprobe", "run", "--port", str(self.port + 1000), "--dir", str(self.ledger)]
        return [*run, *self.options, "--", *serve]

    def environment(self) -> dict[str, str]:
        caches = {
            "TRITON_CACHE_DIR": "triton",
            "VLLM_CACHE_ROOT": "vllm",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "VLLM_CONFIG_ROOT": "config",
        }
        return {
            **os.environ,
            **{name: str(self.folder / "caches" / place) for name, place in caches.items()},
            "TRITONPROBE_GPU_WINDOWS": self.windows,
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.extra,
        }

    def __enter__(self) -> Server:
        """As `start`; what did not come up is ended, too."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it, and waits until it is healthy. Raises RuntimeError with the end of its log."""
        self.ledger.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.traces.mkdir(exist_ok=True)
        begin = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(), env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() - begin > UP_SECONDS:
                raise RuntimeError(f"{self.name} did not come up:\n{self.tail()}")
            time.sleep(0.2)
        self.up_seconds = time.monotonic() - begin

    def stop(self) -> int | None:
        """Ends it, and whatever it left of its session. Returns its exit code."""
        process = self.process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DOWN_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def healthy(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.call("GET", "/health", timeout=2)[0] == 200
        return False

    def call(self, method: str, path: str, body: Any = None, timeout: float = 120) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), _JSON)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def complete(
        self, prompts: Sequence[Sequence[int]], tokens: int, at_first: Any = None, **sampling: object
    ) -> Answer:
        """Asks for completions of all prompts at once, streamed; `at_first()` runs when each has its first token."""
        body = {
            "model": MODEL, "prompt": list(prompts), "max_tokens": tokens, "stream": True, "ignore_eos": True,
            "temperature": 0, "seed": 0, "stream_options": {"include_usage": True}, **sampling,
        }  # fmt: skip
        texts = [""] * len(prompts)
        waiting = set(range(len(prompts)))
        first: float | None = None
        count = 0
        begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), _JSON)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read().decode(errors="replace")[:300]
                return Answer(response.status, None, time.monotonic() - begin, (), 0, said)
            for event in _events(response):
                if "error" in event:
                    return Answer(200, first, time.monotonic() - begin, tuple(texts), count, str(event["error"])[:300])
                count = (event.get("usage") or {}).get("completion_tokens", count)  # an event may hold several tokens
                for choice in event.get("choices", ()):
                    texts[choice["index"]] += choice["text"]
                    waiting.discard(choice["index"])
                if not waiting and first is None:
                    first = time.monotonic() - begin
                    if at_first is not None:
                        at_first()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, first, time.monotonic() - begin, tuple(texts), count, f"{type(error).__name__}: {error}")
        finally:
            connection.close()
        return Answer(200, first, time.monotonic() - begin, tuple(texts), count)

    def read(self) -> Reading:
        """What its processes have counted so far."""
        if self._reader is None:
            self._reader = DirectoryReader(self.ledger)
        return read_all(self._reader)

    def switch(self, state: signs.State) -> list[Followed]:
        """As `tritonprobe off` and `on`."""
        return answers(self.ledger, signs.ask(self.ledger, state), time.monotonic() + 10)

    def cubins(self) -> int:
        """Binaries under its caches, counted by looking."""
        return sum(1 for _ in (self.folder / "caches").rglob("*.cubin"))

    def processes(self) -> dict[int, str]:
        """Its living processes and what each calls itself."""
        assert self.process is not None
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(place.name)
                if os.getsid(pid) == self.process.pid:
                    title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found[pid] = f"{(place / 'comm').read_text().strip()}: {title}"
        return found

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def said(self) -> list[str]:
        """What tritonprobe said in the log."""
        return [line[:400] for line in self.log.read_text(errors="replace").splitlines() if "tritonprobe:" in line]


_JSON = {"Content-Type": "application/json"}


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def read_all(reader: DirectoryReader) -> Reading:
    found: Reading = {}
    for family in reader.collect():
        for sample in family.samples:
            key = (family.metric.name, *sample.labels)
            if isinstance(sample, Sample):
                found[key] = sample.value
            elif isinstance(sample, HistogramSample):
                found[(*key, "sum")] = sample.sum
                found[(*key, "count")] = sum(sample.counts)
    return found


def total(reading: Reading, name: str, *labels: str | None) -> float:
    """The sum of a metric's series; a label that is not None must be this."""
    return sum(
        value
        for key, value in reading.items()
        if key[0] == name and all(want is None or want == key[1 + i] for i, want in enumerate(labels))
    )
