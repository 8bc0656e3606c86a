"""Planted stalls of known length under 32 clients: who is charged, how much, and what they really waited.

The truth is the engine's own log and the clients' own clocks. Beside the run with the stall stands one without, equal
in everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = 32
TOKENS = 8
MS = 1_000_000
TOLERANCE = 5 * MS


@dataclass(frozen=True)
class Run:
    """One run: the engine's log, and when each client had read its last token."""

    log: dict[str, Any]
    ended: dict[int, int]

    @property
    def waited(self) -> dict[int, int]:
        """By the clients' clocks, from the first step on: until then the engine waits for the last of them."""
        return {client: end - self.log["steps"][0][0] for client, end in self.ended.items()}

    def client(self, request_id: str) -> int:
        return int(self.log["client"][request_id])

    @property
    def overlap(self) -> dict[int, int]:
        """By the log: how much of each request's life lay in the stall."""
        start, end = self.log["stall"]
        lives = {self.client(name): (came, self.log["went"][name]) for name, came in self.log["came"].items()}
        return {client: max(0, min(went, end) - max(came, start)) for client, (came, went) in lives.items()}

    @property
    def batch(self) -> set[int]:
        """By the log: the clients in the step that stalled."""
        start, end = self.log["stall"]
        (ids,) = [ids for began, ended, ids in self.log["steps"] if began <= start and end <= ended]
        return {self.client(name) for name in ids}

    @property
    def charged(self) -> dict[int, tuple[int, int]]:
        """What tritonprobe says: nanoseconds in_batch and queued."""
        return {
            self.client(name): (cost["before"][0] + cost["after"][0], cost["before"][1] + cost["after"][1])
            for name, cost in self.log["costs"].items()
        }


def run(plant: str, cache: Path) -> Run:
    command = [sys.executable, "-m", "tests.examples.planted_server", plant, str(CLIENTS)]
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITONPROBE_DEVICE": "compile-only:cuda:90"}
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            ended = asyncio.run(clients(url))
        finally:
            server.send_signal(signal.SIGINT)
        told = server.stdout.read()
    assert told, "the server died"
    return Run(json.loads(told), ended)


async def clients(url: str) -> dict[int, int]:
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        return dict(await asyncio.gather(*(client(http, number) for number in range(CLIENTS))))


async def client(http: httpx.AsyncClient, number: int) -> tuple[int, int]:
    asked = {"prompt": [number], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    async with http.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        tokens = sum('"token_ids"' in line for line in [line async for line in answer.aiter_lines()])
    assert tokens == TOKENS
    return number, time.monotonic_ns()


def control(stalled: Run, calm: Run) -> int:
    """By how much the requests that had gone before the stall differ between the two runs: nothing but noise."""
    gone = [client for client, ns in stalled.overlap.items() if ns == 0]
    return max(abs(stalled.waited[client] - calm.waited[client]) for client in gone)


@pytest.fixture(scope="module", params=["kernel", "sleep"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run with the stall and its pair without. A pair whose control group differs says nothing: another is made."""
    for _ in range(3):
        cache = tmp_path_factory.mktemp("cache")
        found = run(request.param, cache / "with"), run("none", cache / "without")
        if control(*found) <= TOLERANCE:
            break
    return found


def test_the_stall_is_as_long_as_planned(pair: tuple[Run, Run]):
    start, end = pair[0].log["stall"]
    assert end - start >= 300 * MS
    assert pair[1].log["stall"] is None


def test_exactly_the_batch_and_the_queue_are_charged(pair: tuple[Run, Run]):
    stalled, calm = pair
    live = {client for client, ns in stalled.overlap.items() if ns > 0}
    assert 0 < len(stalled.batch) < len(live) < CLIENTS  # some ran, some waited, some had gone
    charged = stalled.charged
    assert {client for client, (own, _) in charged.items() if own} == stalled.batch
    assert {client for client, (_, queued) in charged.items() if queued} == live - stalled.batch
    assert set(calm.charged.values()) == {(0, 0)}


def test_the_exposure_is_the_overlap_of_stall_and_life(pair: tuple[Run, Run]):
    stalled, _ = pair
    off = {c: own + queued - stalled.overlap[c] for c, (own, queued) in stalled.charged.items()}
    assert max(map(abs, off.values())) <= TOLERANCE, off


def test_parts_add_up_to_each_life(pair: tuple[Run, Run]):
    for each in pair:
        for cost in each.log["costs"].values():
            assert sum(cost["parts"]) == cost["life"]
            assert cost["parts"][1] > TOKENS * 10 * MS  # execution: eight steps of ten milliseconds


def test_nobody_waited_longer_for_the_stall_than_was_charged(pair: tuple[Run, Run]):
    """Against the paired run, each by more than 2% of what it was charged, or 5 ms, if that is more."""
    stalled, calm = pair
    more = {client: waited - calm.waited[client] for client, waited in stalled.waited.items()}
    charged = {client: own + queued for client, (own, queued) in stalled.charged.items()}
    excess = {client: more[client] - ns for client, ns in charged.items()}
    beyond = {client: ns for client, ns in excess.items() if ns > max(0.02 * charged[client], TOLERANCE)}
    told = f"excess from {min(excess.values()) / MS:.1f} to {max(excess.values()) / MS:.1f} ms"
    assert beyond == {}, told
