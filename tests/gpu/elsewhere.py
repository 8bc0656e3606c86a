"""Kernels compiled where there is no GPU, and carried to one: what the same traffic still compiles there.

python -m tests.gpu.elsewhere build FOLDER --trace CSV                              where there is no CUDA
python -m tests.gpu.elsewhere serve FOLDER --trace CSV --out FILE [--device cuda]   on the GPU's machine

`build` serves the first requests of a trace with the example server on the compile-only device, which leaves a census;
compiles that into an empty cache by ``tritonprobe prewarm --target``; and packs it. FOLDER then holds the bundle, and
how it was made. `serve` installs the bundle into an empty cache at another path, and starts the server twice with the
same traffic: as it is, and replaying the census that came with the bundle, with what the first start met beside it.
Exit code 1: something was compiled, or was cold after a replay; the document says what.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tests.gpu.vllm_engine import ROOT, Reading, read_all, total
from tritonprobe.documents import read_json
from tritonprobe.ledger import DirectoryReader
from tritonprobe.proving.document import described, document, pick_device
from tritonprobe.proving.processes import environment
from tritonprobe.settings import SettingError

PROGRAM = "python -m tests.gpu.elsewhere"
TARGET = "cuda:90"
BUNDLE, BUILT = "kernels.tpb", "built.json"
NEEDED = frozenset(("sees_cuda", "cache", "sha256", "recorded", "bundle"))
"""What `serve` has to know of how the bundle was built."""
LIMIT, SPEED = 60, 2
"""How many requests of the trace, and at how many times their pace."""
SERVER = ("--dtype", "bfloat16", "--slots", "16", "--port", "0")
UP_SECONDS, DOWN_SECONDS = 120.0, 30.0


class Failed(Exception):
    """A command did not do what it is for; the message is one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one half works: its folder, with a cache of its own, and the server's device."""

    folder: Path
    device: str | None
    """A compile-only device, or None for the GPU."""

    def cache(self, name: str) -> Path:
        return self.folder / name / "triton"

    def cubins(self, name: str) -> int:
        """Binaries in a cache, counted by looking."""
        return sum(1 for _ in self.cache(name).rglob("*.cubin"))

    def census(self, name: str) -> Path:
        return self.folder / f"{name}.census.json"

    def tritonprobe(self, cache: str, *words: object, device: str | None = None) -> str:
        """What a command of tritonprobe's says. Raises Failed."""
        command = [sys.executable, "-m", "tritonprobe", *map(str, words)]
        env = environment(self.cache(cache), device)
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"tritonprobe {words[0]} {words[1]}: exit code {done.returncode}: {_end(done.stderr)}")
        return done.stdout

    def serve(self, name: str, cache: str, trace: Path, *options: object) -> dict[str, Any]:
        """One start of the server under ``tritonprobe run``, and the traffic: what was counted. Raises Failed."""
        ledger, before = self.folder / f"ledger-{name}", self.cubins(cache)
        ledger.mkdir(mode=0o700)
        options = ("--dir", ledger, "--record", self.census(name), *options)
        with self._server(name, cache, *options) as (url, up_seconds):
            words = (trace.resolve(), "--url", url, "--limit", LIMIT, "--speed", SPEED, "--json")
            summary = json.loads(self.tritonprobe(cache, "bench", "serve", *words))["summary"]
            alive = read_all(DirectoryReader(ledger))  # what is said of a process goes with it
        reading = read_all(DirectoryReader(ledger))
        return {
            "device": next((key[3] for key in alive if key[0] == "info"), None),
            "up_seconds": round(up_seconds, 2),
            **{kept: summary[kept] for kept in ("requests", "completed", "output_tokens", "ttft")},
            "launches": int(total(reading, "launches_total")),
            "lookups": _by(reading, "cache_lookups_total", 3),
            "cubins_before": before,
            "cubins_after": self.cubins(cache),
            "coverage": next((value for key, value in alive.items() if key[0] == "prewarm_coverage_ratio"), None),
            "cold_calls_before_ready": _by(reading, "cold_calls_before_ready_total", 1),
            "cold_calls_after_ready": _by(reading, "cold_calls_after_ready_total", 1),
            "cold_seconds": round(total(reading, "cold_seconds_total"), 3),
            "incidents": self._incidents(name),
        }

    @contextlib.contextmanager
    def _server(self, name: str, cache: str, *options: object) -> Iterator[tuple[str, float]]:
        """The server's URL once it is ready, and the seconds until then; it is stopped as by Ctrl-C. Raises Failed."""
        server = [sys.executable, "-m", "examples.llm_server", "--device", self.device or "cuda", *SERVER]
        command = [sys.executable, "-m", "tritonprobe", "run", "--port", "0", *map(str, options), "--", *server]
        env = environment(self.cache(cache), self.device)
        begin = time.monotonic()
        with self._log(name).open("w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        patience = threading.Timer(UP_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        patience.start()
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            patience.cancel()
            if not url.startswith("http://"):
                raise Failed(f"the server did not come up: {_end(self._log(name).read_text())}")
            yield url, time.monotonic() - begin
        finally:
            patience.cancel()
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DOWN_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _incidents(self, name: str) -> list[str]:
        """What the server said of its cold calls after ready."""
        lines = self._log(name).read_text(errors="replace").splitlines()
        return [line.rpartition("tritonprobe: ")[2][:400] for line in lines if " was cold after ready: " in line]


def build(folder: Path, trace: Path) -> dict[str, Any]:
    """A bundle in `folder`, and how it was made. Raises Failed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks, here and in all processes that we start
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / BUNDLE
    with tempfile.TemporaryDirectory(prefix="tritonprobe-elsewhere-") as work:
        place = Place(Path(work), f"compile-only:{TARGET}")
        recorded = place.serve("recorded", "recording", trace)
        census = place.census("recorded")
        allowed = ("--allow", "examples", "--allow", "tritonprobe_kernels")
        words = ("prewarm", census, "--target", TARGET, "--cover", 1, *allowed, "--json")
        prewarm = json.loads(place.tritonprobe("build", *words))
        packed = json.loads(
            place.tritonprobe("build", "bundle", "pack", "-o", bundle.resolve(), "--census", census, "--json")
        )
        body = {
            "sees_cuda": torch.cuda.is_available(),
            "cache": str(place.cache("build")),
            "sha256": _digest(bundle),
            "recorded": recorded,
            "prewarm": prewarm,
            "bundle": packed,
            "cubins": place.cubins("build"),
        }
    command = f"{PROGRAM} build {folder.name} --trace {trace.name}"
    made = {**described(), "device": recorded["device"]}
    return document("kernels built for elsewhere", command, made, body)


def serve(folder: Path, trace: Path, device: str | None) -> dict[str, Any]:
    """Installs the bundle, and serves with it. Raises Failed."""
    built = _read(folder / BUILT)
    if _digest(folder / BUNDLE) != built["sha256"]:
        raise Failed(f"{folder / BUNDLE} is not the bundle that {BUILT} beside it speaks of: build both again")
    with tempfile.TemporaryDirectory(prefix="tritonprobe-elsewhere-") as work:
        place = Place(Path(work), device)
        came, both = place.census("came"), place.census("both")
        words = ("bundle", "install", (folder / BUNDLE).resolve(), "--census", came, "--json")
        install = json.loads(place.tritonprobe("there", *words, device=device))
        install["another_path"] = str(place.cache("there")) != built.pop("cache")
        starts = {"installed": place.serve("installed", "there", trace)}
        place.tritonprobe("there", "census", "merge", came, place.census("installed"), "-o", both)
        starts["prewarmed"] = place.serve("prewarmed", "there", trace, "--prewarm", both)
    missed = unmet(built, install, starts)
    return {
        "device": starts["installed"]["device"],
        "good": not missed,
        "unmet": missed,
        "traffic": {"trace": trace.name, "requests": LIMIT, "speed": SPEED, "server": list(SERVER)},
        "install": install,
        **starts,
        "built": built,
    }


def unmet(built: Mapping[str, Any], install: Mapping[str, Any], starts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What would have to be otherwise for a good verdict."""
    entries, missing = built["bundle"]["entries"], built["bundle"]["missing_kernels"]
    recorded, binaries = built["recorded"]["lookups"]["compile"], _grown(built["recorded"])
    said = {
        "the machine that compiled saw a GPU": built["sees_cuda"],
        f"recorded: {recorded} lookups compiled, and {binaries} binaries came of it": recorded != binaries,
        f"not in the bundle: variants of {', '.join(missing)}": bool(missing),
        "the cache is at the path that it was compiled at": not install["another_path"],
        f"{install['installed']} of {entries} kernels were installed": install["installed"] != entries,
    }
    for name, start in starts.items():
        compiles, grown = start["lookups"].get("compile", 0), _grown(start)
        said |= {
            f"{name}: {start['completed']} of {LIMIT} requests were answered": start["completed"] != LIMIT,
            f"{name}: {compiles} lookups compiled": compiles > 0,
            f"{name}: {grown} binaries more in the cache": grown != 0,
            f"{name}: no lookup was answered by the cache": not start["lookups"].get("disk"),
        }
    late = sum(starts["prewarmed"]["cold_calls_after_ready"].values())
    said[f"prewarmed: {late} cold calls after ready"] = late > 0
    return [what for what, is_so in said.items() if is_so]


def _read(path: Path) -> dict[str, Any]:
    """How a bundle was made. Raises Failed."""
    try:
        built = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: {error}") from None
    if not isinstance(built, dict) or not built.keys() >= NEEDED:
        raise Failed(f"{path}: has no {', '.join(sorted(NEEDED))}; `build` writes them")
    return built


def _grown(start: Mapping[str, Any]) -> int:
    return int(start["cubins_after"] - start["cubins_before"])


def _by(reading: Reading, name: str, label: int) -> dict[str, int]:
    """A metric's series, added up by one of their labels."""
    found: Counter[str] = Counter()
    for key, value in reading.items():
        if key[0] == name:
            found[key[label]] += int(value)
    return dict(sorted(found.items()))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _end(said: str) -> str:
    """The last lines that say something, as one."""
    return " | ".join([line.strip()[:300] for line in said.splitlines() if line.strip()][-3:]) or "no message"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    halves = parser.add_subparsers(dest="half", required=True)
    for half in ("build", "serve"):
        options = halves.add_parser(half)
        options.add_argument("folder", type=Path, help="what is carried from one machine to the other")
        options.add_argument("--trace", type=Path, required=True, help="CSV of the Azure LLM inference traces")
        if half == "serve":
            options.add_argument("--out", type=Path, required=True, help="the document")
            options.add_argument("--device", default="cuda", help="cuda, or compile-only:cuda:90: a rehearsal")
    given = parser.parse_args()
    # Before anything is done that takes minutes:
    if given.half == "build" and given.folder.exists() and not given.folder.is_dir():
        parser.error(f"{given.folder}: is no folder")
    if given.half == "serve" and (given.out.is_dir() or not given.out.absolute().parent.is_dir()):
        parser.error(f"--out {given.out}: no file can be there")
    needed = [given.trace, *([given.folder / BUNDLE, given.folder / BUILT] if given.half == "serve" else [])]
    for path in needed:
        if not path.is_file():
            parser.error(f"{path}: no such file{'' if path == given.trace else '; `build` leaves it'}")
    try:
        if given.half == "build":
            made = build(given.folder, given.trace)
            (given.folder / BUILT).write_text(json.dumps(made, indent=1) + "\n")
            click.echo(
                f"{given.folder / BUNDLE}: {made['bundle']['entries']} binaries, {made['bundle']['bytes']} bytes"
            )
            return 0
        body = serve(given.folder, given.trace, pick_device(given.device))
    except (Failed, SettingError) as error:
        click.echo(f"Error: {error}", err=True)
        return 2
    command = f"{PROGRAM} serve {given.folder.name} --trace {given.trace.name} --out {given.out.name}"
    made = {**described(), "device": body["device"]}
    found = document("compiled elsewhere", f"{command} --device {given.device}", made, body)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for name in ("installed", "prewarmed"):
        start = found[name]
        click.echo(
            f"{name}: up after {start['up_seconds']} s, {start['completed']} of {start['requests']} answered, "
            f"lookups {start['lookups']}, binaries {start['cubins_before']} -> {start['cubins_after']}, "
            f"cold calls after ready {sum(start['cold_calls_after_ready'].values())}"
        )
    click.echo("good" if found["good"] else f"not good: {'; '.join(found['unmet'])}")
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
