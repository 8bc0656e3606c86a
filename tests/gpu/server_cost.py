"""What tritonprobe costs the example server: tokens a second unprobed, switched off, and with everything on, in turns.

    TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost [--seconds 150] [--states unprobed,off,on] [-o FILE]

One engine in one process, without HTTP, on 16 requests that all get a token each step. `unprobed` is the program as it
would be without tritonprobe: its ops are functions that ask `supports` and call the kernel or the fallback, launched by
Triton's own launcher, and no request or step is told of; `off` is what `uninstrument` leaves, where ops are counted;
`on` is everything. Tokens a second are those of the
median step of rounds that take turns every tenth of a second, in the middle of the same requests, on one core, since a
machine's pace drifts by more than what is looked for. With fewer states there are more rounds of each: a pair of rounds
says little where half of them are slowed down by other machines' work. What GPU windows take is added, as their budget
bounds it. Exit code 1: the loss may be more than 1%.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

import tritonprobe
from examples.llm_server import engine as engine_module
from examples.llm_server import model as model_module
from examples.llm_server.config import EngineConfig, ModelConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Failed, Generation, Sampling, Token
from examples.llm_server.model import Decoder
from tests.gpu.tokens_lost import leave, stay_on_one_core
from tritonprobe.proving.intervals import interval, ratios
from tritonprobe.runtime import current

REQUESTS, PROMPT = 16, 256
STEPS, SETTLING = 12, 12  # of a round, and those before it: a switch takes both programs out of the caches
MODEL = ModelConfig(
    layers=8, hidden=1024, heads=16, kv_heads=8, intermediate=2816, vocab=32000, max_len=2048, dtype="bfloat16"
)
STATES = ("unprobed", "off", "on")
CALM = 40  # rounds after which the calmest core is looked for again
SPARE = 6 * (STEPS + SETTLING)  # tokens a request still has when the next ones are sent for


class Traffic:
    """`REQUESTS` requests that are always there, and the times at which the first one's tokens come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._times: list[int] = []
        self._ended = 0
        self._failed: Failed | None = None
        self._sent: list[tuple[Generation, Any]] = []
        self.told = True
        self.send()

    def send(self) -> None:
        """Lets the requests that are there end, and sends new ones."""
        tokens = MODEL.max_len - PROMPT
        for generation, request in self._sent:  # their ends are told in any case
            generation.request = request
        self._wait(lambda: self._ended == len(self._sent))
        self._times, self._ended, self._sent = [], 0, []
        for number in range(REQUESTS):
            prompt = [(7 * number + place) % 30000 + 3 for place in range(PROMPT)]
            sampling = Sampling(max_tokens=tokens, ignore_eos=True)
            sent = self._engine.submit(str(number), prompt, sampling, partial(self._emit, number))
            self._sent.append((sent, sent.request))
        self.tell(self.told)

    def tell(self, told: bool) -> None:
        """Whether tritonprobe is told of the requests' tokens."""
        self.told = told
        for generation, request in self._sent:
            generation.request = request if told else _UNTOLD  # type: ignore[assignment]

    def tokens_per_second(self) -> float:
        """Over the next steps, by the median one."""
        if len(self._times) > MODEL.max_len - PROMPT - SPARE:
            self.send()
        first = max(len(self._times), 1) + SETTLING  # the first one's prompt may still be on its way
        self._wait(lambda: len(self._times) > first + STEPS)
        steps = [later - earlier for earlier, later in pairwise(self._times[first : first + STEPS + 1])]
        return REQUESTS / median(steps) * 1e9

    def finish(self) -> None:
        for generation, request in self._sent:
            self._engine.cancel(generation)
            generation.request = request

    def _wait(self, there: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: there() or self._failed is not None, 120), "the engine stands still"
        assert self._failed is None, self._failed

    def _emit(self, number: int, what: Token | Failed) -> None:
        now = time.perf_counter_ns()
        if number == 0 and isinstance(what, Token):
            self._times.append(now)
        ended = isinstance(what, Failed) or what.finish_reason is not None
        if ended or (number == 0 and len(self._times) % STEPS == 0):
            with self._changed:
                self._ended += ended
                if isinstance(what, Failed):
                    self._failed = what
                self._changed.notify()


_UNTOLD = SimpleNamespace(token=lambda: None, finish=lambda error=None: None)
_PLAIN = SimpleNamespace(step=lambda batch: contextlib.nullcontext(), request=tritonprobe.request)


def _by_hand(op: Any) -> Callable[..., Any]:
    """What somebody would write who had no `op`."""
    made = inspect.getclosurevars(op).nonlocals["take"].__self__  # before its first call
    supports, fallback, function = made._supports, made._fallback, made._function

    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if supports(*args, **kwargs) is True else fallback)(*args, **kwargs)

    return function if supports is None else call


OPS = {name: (made, _by_hand(made)) for name, made in vars(model_module).items() if hasattr(made, "__wrapped__")}


class States:
    """Puts the program into one of `STATES`, while it runs."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        assert "rmsnorm" in OPS, "the model's ops are not where they were"
        self._on = False

    def enter(self, state: str) -> None:
        if self._on != (state == "on"):
            self._on = state == "on"
            if self._on:
                tritonprobe.instrument()
                watch: Any = current().adapter.gpu
                watch.times.stop()  # windows are measured apart: a median step has none
            else:
                tritonprobe.uninstrument()
        plain = state == "unprobed"
        vars(engine_module)["tritonprobe"] = _PLAIN if plain else tritonprobe
        self._traffic.tell(not plain)
        for name, (made, by_hand) in OPS.items():
            setattr(model_module, name, by_hand if plain else made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long rounds take turns")
    parser.add_argument("--states", default=",".join(STATES), help="unprobed, on and, between them, off")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    taking_turns = tuple(options.states.split(","))
    if taking_turns not in (STATES, (STATES[0], STATES[-1])):
        parser.error(f"--states {options.states}: expected {','.join(STATES)} or {STATES[0]},{STATES[-1]}")
    watch: Any = current().adapter.gpu
    if watch is None:
        parser.error("GPU windows are off: set TRITONPROBE_GPU_WINDOWS=1")
    model = Decoder(MODEL, REQUESTS, torch.device("cuda"))
    draw = random.Random(0)
    rounds: dict[str, list[float]] = {state: [] for state in taking_turns}
    with Engine(model, EngineConfig(max_len=MODEL.max_len, vocab=MODEL.vocab, slots=REQUESTS)) as engine:
        served = next(thread for thread in threading.enumerate() if "engine" in thread.name)
        assert served.native_id is not None
        traffic = Traffic(engine)
        states = States(traffic)
        for state in taking_turns * 2:
            states.enter(state)
            traffic.tokens_per_second()
        cores = os.sched_getaffinity(0)
        until = time.monotonic() + options.seconds
        while time.monotonic() < until:
            if len(rounds[taking_turns[0]]) % CALM == 0:
                stay_on_one_core(served.native_id, cores)
            for state in draw.sample(taking_turns, len(taking_turns)):
                states.enter(state)
                rounds[state].append(traffic.tokens_per_second())
        states.enter("on")
        traffic.tokens_per_second()
        seen = [watch.times.window(watch.times.budget.seconds) for _ in range(6)]  # the requests go on meanwhile
        assert watch.times.info[0] == "cupti", watch.times.info
        traffic.finish()
    tritonprobe.uninstrument()
    torch.cuda.synchronize()
    command = "TRITONPROBE_GPU_WINDOWS=1 python -m tests.gpu.server_cost"
    command += f" --seconds {options.seconds:g} --states {options.states}"
    more = {
        "on_of_off": asdict(interval(ratios(rounds["off"], rounds["on"]), 0)) if "off" in rounds else None,
        "period_s": watch.times.budget.period,
        "seen_in_windows": [[asdict(sample) for sample in each] for each in seen],
    }
    return leave("server_cost", command, rounds, watch.times.budget.share, more, options.output)


if __name__ == "__main__":
    sys.exit(main())
