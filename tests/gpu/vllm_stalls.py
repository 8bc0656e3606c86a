"""Planted stalls of known length in a real vLLM under ``tritonprobe run``: who is charged, how much, who waited.

What plants them, and keeps a log of its own, is the plugin in `plant`: a server needs `environment(folder)` for it. The
truth is that log and the clients' clocks; beside each run with a stall stands one without, equal in everything else.

`late` requests come while the step stalls, and are let in right after it. `waiting` ones have come before and get no
place in the batch until another one leaves: these two are in runs of their own, for what delays the batch delays those
who come late to a full one, too, in whose life that stall was not.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.vllm_engine import MODEL, Server, total

PLANT = Path(__file__).with_name("plant")
PAIRS = 12
SLEEP_SECONDS = 0.5
COMPILE_SECONDS = 0.5
"""What a planted compile has to take at least."""
MS = 1_000_000
TOLERANCE = 5 * MS
RELATIVE = 0.02
PATIENCE = 60.0
STALLED_STEP = 8
WARM_UPS = 6
TRIES = 3
"""Of a run in which something else was cold, too."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Who asks for how many tokens. The first of the `early` has gone when the step stalls."""

    name: str
    early: tuple[int, ...]
    late: tuple[int, ...]
    limit: int | None


SHAPES = (
    Shape("waiting", (3, 14, 16, 18, 20, 14, 4, 4), (), 5),  # the sixth takes the first one's place
    Shape("late", (3, 14, 16, 18, 20), (4, 4), None),
)


@dataclass(slots=True)
class Run:
    """One run, as the plugin logged it and the clients saw it. Requests go by their clients' names."""

    begun: int = 0
    came: dict[str, int] = field(default_factory=dict)
    went: dict[str, int] = field(default_factory=dict)
    stall: tuple[int, int] = (0, 0)
    batch: frozenset[str] = frozenset()  # of the step that stalled
    charged: dict[str, tuple[int, int]] = field(default_factory=dict)  # nanoseconds in_batch, queued: tritonprobe's
    waited: dict[str, int] = field(default_factory=dict)  # by the clients' clocks

    @property
    def overlap(self) -> dict[str, int]:
        """By the log: how much of each request's life lay in the stall."""
        start, end = self.stall
        return {name: max(0, min(self.went[name], end) - max(came, start)) for name, came in self.came.items()}


def environment(folder: Path) -> dict[str, str]:
    """What a server needs in its environment for stalls to be planted; without a command nothing is wrapped."""
    path = os.pathsep.join(filter(None, (str(PLANT), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "TRITONPROBE_PLANT": str(folder / "plant")}


def stalls(server: Server) -> dict[str, Any]:
    """The show. The server was started with `environment(server.folder)`, and serves nobody else meanwhile."""
    planter = _Planter(server)
    planter.switch(on=True)
    try:
        for shape in SHAPES:
            for _ in range(WARM_UPS):
                if planter.play("none", shape)[1] == 0:
                    break
        found = {
            f"{kind}, {shape.name}": judge(kind, [planter.pair(kind, shape) for _ in range(PAIRS)])
            for kind in ("sleep", "compile")
            for shape in SHAPES
        }
    finally:
        planter.switch(on=False)
    return {
        "pairs": PAIRS,
        "sleep_s": SLEEP_SECONDS,
        "runs_with_another_cold_call": planter.disturbed,
        "stalls": found,
        "good": all(each["good"] for each in found.values()),
    }


def judge(kind: str, pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """What `pairs` of a run with a stall and a calm one say. Differences of waiting are medians over the pairs."""
    stalled = [with_stall for with_stall, _ in pairs]
    lengths = [(run.stall[1] - run.stall[0]) / 1e9 for run in stalled]
    wrong = [each for run in stalled for each in _wrongly_charged(run)]
    wrong += [f"calm: {name} {ns}" for _, calm in pairs for name, ns in calm.charged.items() if sum(ns) > MS]
    off = [sum(run.charged.get(name, (0, 0))) - ns for run in stalled for name, ns in run.overlap.items()]
    excess: dict[str, list[int]] = {}
    beyond_by: dict[str, list[float]] = {}
    for run, calm in pairs:
        for name, waited in run.waited.items():
            charged = sum(run.charged.get(name, (0, 0)))
            excess.setdefault(name, []).append(waited - calm.waited[name] - charged)
            beyond_by.setdefault(name, []).append(excess[name][-1] - max(RELATIVE * charged, TOLERANCE))
    beyond = {name: median(excess[name]) / 1e9 for name, each in beyond_by.items() if median(each) > 0}
    least = COMPILE_SECONDS if kind == "compile" else SLEEP_SECONDS
    queued = [{name for name, ns in run.overlap.items() if ns and name not in run.batch} for run in stalled]
    return {
        "stall_s": lengths,
        "in_batch": sorted(set().union(*(run.batch for run in stalled))),
        "queued": sorted(set().union(*queued)),
        "not_touched": sorted({name for run in stalled for name, ns in run.overlap.items() if not ns}),
        "wrongly_charged": wrong,
        "exposure_less_overlap_ms": [min(off) / MS, max(off) / MS],
        "waited_more_than_charged_ms": {name: [round(ns / MS, 2) for ns in each] for name, each in excess.items()},
        "beyond_the_bound_s": beyond,
        "runs": [_as_told(run) for pair in pairs for run in pair],
        "good": min(lengths) >= least
        and all(queued)
        and all(run.batch for run in stalled)
        and not wrong
        and max(map(abs, off)) <= TOLERANCE
        and not beyond,
    }


def _as_told(run: Run) -> dict[str, Any]:
    """All of a run, for whoever wants to judge it again. Nanoseconds."""
    return {
        "stall": run.stall[1] - run.stall[0],
        "batch": sorted(run.batch),
        "overlap": run.overlap,
        "charged": run.charged,
        "waited": run.waited,
    }


def _wrongly_charged(run: Run) -> Iterator[str]:
    """Whoever was charged and was not there, or was there and was not charged, or as what he was not."""
    for name in run.charged.keys() - run.overlap.keys():
        yield f"{name}: {run.charged[name]} ns, and the log knows no such request"
    for name, ns in run.overlap.items():
        in_batch, queued = run.charged.get(name, (-1, -1))
        expected = (True, False) if name in run.batch and ns else (False, ns > 0)
        if (in_batch > MS, queued > MS) != expected:
            yield f"{name}: in batch {in_batch / MS:.1f} ms, queued {queued / MS:.1f} ms, by the log {expected}"


class _Planter:
    """The server with its plugin: gives commands and reads the log."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._folder = server.folder / "plant"
        self._number = 0
        self._read: dict[Path, int] = {}
        self._lines: list[dict[str, Any]] = []
        self.disturbed = 0

    def switch(self, *, on: bool) -> None:
        if on:
            (self._folder / "on").touch()
        else:
            (self._folder / "on").unlink()
        assert self._living("here"), "no process of the server has loaded the plugin: see `environment`"
        _until(lambda: self._living("on") == (self._living("here") if on else set()), "the plugin does not follow")

    def _living(self, what: str) -> set[int]:
        """Processes that have such a file and live: vLLM starts some that look at models, and are gone soon."""
        pids = {int(path.name.rpartition("-")[2]) for path in self._folder.glob(f"{what}-*")}
        return {pid for pid in pids if Path(f"/proc/{pid}").exists()}

    def pair(self, kind: str, shape: Shape) -> tuple[Run, Run]:
        """With the stall first in every other pair."""
        order = (kind, "none") if self._number % 4 < 2 else ("none", kind)
        made = {each: self._undisturbed(each, shape) for each in order}
        return made[kind], made["none"]

    def _undisturbed(self, kind: str, shape: Shape) -> Run:
        for _ in range(TRIES):
            run, others = self.play(kind, shape)
            if others == 0:
                break
            self.disturbed += 1
        return run

    def play(self, kind: str, shape: Shape) -> tuple[Run, int]:
        """One run, and how many cold calls there were beside the planted one."""
        self._number += 1
        number = self._number
        before = total(self._server.read(), "cold_calls_after_ready_total")
        command = {
            "number": number, "kind": kind, "seconds": SLEEP_SECONDS, "limit": shape.limit, "step": STALLED_STEP,
            "together": len(shape.early),
        }  # fmt: skip
        _write(self._folder / "arm.json", command)
        self._lines.clear()
        clients = [_Client(self._server, f"s{number}r{i}e", tokens) for i, tokens in enumerate(shape.early)]
        for client in clients:  # one after the other, so that the engine has them in this order
            self._send(client)
        _until((self._folder / f"stalling-{number}").exists, "the step that stalls has not come", every=0.0005)
        late = [_Client(self._server, f"s{number}l{i}e", tokens) for i, tokens in enumerate(shape.late)]
        for client in late:
            self._send(client)
        for client in (*clients, *late):
            client.join(PATIENCE)
            assert client.error is None, f"{client.name}: {client.error}"
        names = {client.name for client in (*clients, *late)}
        _until(lambda: names <= self._named("cost"), "some requests have no figures")
        planted = int(kind != "none")
        _until(lambda: self._cold_calls() - before >= planted, "the planted stall is no cold call")
        run = _made(self._lines)
        for client in clients:
            run.waited[_slot(client.name)] = client.ended - run.begun
        for client in late:
            run.waited[_slot(client.name)] = client.ended - client.began
        return run, int(self._cold_calls() - before) - planted

    def _send(self, client: _Client) -> None:
        client.start()
        _until(lambda: client.name in self._named("came"), f"{client.name} has not come")

    def _cold_calls(self) -> float:
        return total(self._server.read(), "cold_calls_after_ready_total")

    def _named(self, what: str) -> set[str]:
        self._take()
        return {_client(line["id"]) for line in self._lines if line["what"] == what}

    def _take(self) -> None:
        for path in self._folder.glob("log-*.jsonl"):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    self._lines.append(json.loads(line))


class _Client(threading.Thread):
    """One completion, asked for in a thread, by a clock of its own."""

    def __init__(self, server: Server, name: str, tokens: int) -> None:
        super().__init__(name=name, daemon=True)
        self._server = server
        self._tokens = tokens
        self.began = self.ended = 0
        self.error: str | None = None

    def run(self) -> None:
        body = {
            "model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": self._tokens, "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "X-Request-Id": self.name}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
        self.began = time.monotonic_ns()
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            said = response.read().decode(errors="replace")
            self.ended = time.monotonic_ns()
            if response.status != 200:
                self.error = f"{response.status} {said[:300]}"
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()


def _made(lines: Sequence[Mapping[str, Any]]) -> Run:
    """The log of one run."""
    run = Run()
    for line in lines:
        match line["what"]:
            case "begun":
                run.begun = line["at"]
            case "came":
                run.came[_slot(line["id"])] = line["at"]
            case "went":
                run.went[_slot(line["id"])] = line["at"]
            case "cost":
                run.charged[_slot(line["id"])] = (line["in_batch"], line["queued"])
            case "stall":
                run.stall = (line["start"], line["end"])
                run.batch = frozenset(map(_slot, line["ids"]))
    return run


def _client(request_id: str) -> str:
    """The name that a client gave its request, which vLLM's own id contains."""
    found = re.search(r"s\d+[rl]\d+e", request_id)
    assert found is not None, f"{request_id} is of no client of ours"
    return found[0]


def _slot(request_id: str) -> str:
    """Which client of its run it was: the same in the paired one."""
    return re.sub(r"^s\d+", "", _client(request_id)).rstrip("e")


def _until(there: Callable[[], bool], otherwise: str, every: float = 0.002) -> None:
    deadline = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} within {PATIENCE:.0f} s")
        time.sleep(every)


def _write(path: Path, command: Mapping[str, object]) -> None:
    """Whole, or not there."""
    newborn = path.with_suffix(".new")
    newborn.write_text(json.dumps(command))
    newborn.rename(path)
