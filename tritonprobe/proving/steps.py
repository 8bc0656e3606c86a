"""What `step()` costs an engine's iteration: empty steps over live requests that nobody samples.

Touches no Triton: a step is two calls of ours around the model's execution, and what is timed is those. With peers the
process has joined an engine of five, as a scheduler with four workers. Rounds of all kinds take turns, so that a
machine's drift weighs on all alike.

A batch that is the ``same`` is one list for all steps, and a ``rebuilt`` one a new list with the same requests, as
engines make it for each step; ``pairs`` is the same with a number of tokens beside each request. In the others a
request leaves and another one, made in between, comes with each step: in a ``changing`` one the first leaves, and the
new one is the last; in a ``replaced`` one the new one takes the place of some other, and in a ``condensed`` one those
behind the one that left move up. These two are pairs as well, as a busy engine has them.

The requests are a runtime's, as every program has one: what it tells its steps of cold calls is part of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tritonprobe.bus import Bus, Subscriber
from tritonprobe.proving.intervals import Interval, interval
from tritonprobe.requests import LiveRequest, Requests
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.tracing import Trace
from tritonprobe.wording import counted

BUDGET_US = 5.0
KINDS = ("same", "rebuilt", "pairs", "changing", "replaced", "condensed")
"""The batches. The budget is for all of them, whatever their size."""
BESIDE = ("pairs", "replaced", "condensed")
TURNED_OVER = ("changing", "replaced", "condensed")
SIZES = (1, 8, 32, 256)
STEPS = 200
PEERS = 4
SCATTER = 7919
"""The places of those who leave lie this far apart, round the batch."""
UNSAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"

Listener = Callable[[Callable[[int], list[Trace]]], "Subscriber | None"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Microseconds of one step over `size` requests, the median of each round."""

    kind: str
    size: int
    peers: int
    tracer: bool
    rounds: tuple[float, ...]
    interval: Interval

    @property
    def how(self) -> str:
        peers = counted(self.peers, "peer") if self.peers else "alone"
        return f"{peers}, {'a tracer that samples nothing' if self.tracer else 'no tracer installed'}"


@dataclass(frozen=True, slots=True)
class Steps:
    batches: tuple[Batch, ...]

    @property
    def good(self) -> bool:
        return all(b.interval.high <= BUDGET_US for b in self.batches)


def measure(rounds: int, seed: int, listener: Listener) -> Steps:
    """Measures every batch, alone and with peers; `listener` makes the tracer that is subscribed, if it can."""
    with ExitStack() as stack:
        engines: list[tuple[int, bool, Callable[[str, int], float]]] = []
        for peers in (0, PEERS):
            runtime = Runtime(Settings())
            bus, requests = runtime.bus, runtime.live
            if peers:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tritonprobe-steps-")))
                for each in (requests, *(Requests(Bus()) for _ in range(peers))):
                    each.join(folder, "bench")
                    stack.callback(each.leave)
            tracer = listener(requests.waiting)
            if tracer is not None:
                bus.subscribe(tracer)
            engines.append((peers, tracer is not None, _Engine(requests).round))
        shapes = [(kind, size) for kind in KINDS for size in SIZES]
        taken: dict[tuple[int, str, int], list[float]] = {
            (peers, *shape): [] for peers, _, _ in engines for shape in shapes
        }
        for _ in range(rounds):
            for peers, _, run in engines:
                for kind, size in shapes:
                    taken[peers, kind, size].append(run(kind, size))
    return Steps(
        tuple(
            Batch(kind, size, peers, tracer, tuple(found := taken[peers, kind, size]), interval(found, seed))
            for peers, tracer, _ in engines
            for kind, size in shapes
        )
    )


class _Engine:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def round(self, kind: str, size: int) -> float:
        requests = self._requests
        running = [requests.request(None, "m", UNSAMPLED) for _ in range(size)]
        gone: list[LiveRequest] = []
        times = []
        for number in range(STEPS):
            batch: list[Any] = running if kind == "same" else running[:]
            if kind in BESIDE:
                batch = [(request, 1) for request in running]
            start = time.perf_counter_ns()
            with requests.step(batch, id=number):
                pass
            times.append(time.perf_counter_ns() - start)
            if kind in TURNED_OVER:
                new = requests.request(None, "m", UNSAMPLED)
                gone.append(_take_over(kind, running, number * SCATTER % size, new))
        for request in running + gone:
            request.finish()
        return median(times) / 1e3


def _take_over(kind: str, running: list[LiveRequest], place: int, new: LiveRequest) -> LiveRequest:
    """Somebody leaves, and `new` comes. Returns who left."""
    if kind == "replaced":
        gone, running[place] = running[place], new
        return gone
    running.append(new)
    return running.pop(0 if kind == "changing" else place)


def body(steps: Steps, rounds: int, seed: int) -> dict[str, Any]:
    """The figures for the JSON document."""
    return {
        "seed": seed,
        "rounds": rounds,
        "steps_a_round": STEPS,
        "budget_us": BUDGET_US,
        "kept": steps.good,
        "batches": [
            {
                "batch": each.kind,
                "requests": each.size,
                "peers": each.peers,
                "tracer": each.tracer,
                "median_us": each.interval.median,
                "interval_us": [each.interval.low, each.interval.high],
                "rounds_us": [round(us, 3) for us in each.rounds],
            }
            for each in steps.batches
        ],
    }
