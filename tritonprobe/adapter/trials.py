"""Tunes what a census says was tuned: candidates are compiled in threads, and benchmarked here as they arrive.

Only with tensors that are safe to make: float data of the recorded type, shape and strides. A tensor of indices could
lead anywhere, so it needs a generator of the program's own (`inputs_for`). Never called in a process that serves.
Touches an `Autotuner`'s `_bench`, `nargs`, `do_bench` and `cache`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tritonprobe.adapter.encoding import EncodingError, decode
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.replay import Replay, Stale, living_tuners
from tritonprobe.shapes.census import Census, Entry, Tuned
from tritonprobe.shapes.census_json import text_of_json

QUICK_SECONDS, LONG_SECONDS = 0.01, 0.05
FINALISTS = 8
"""Candidates that are measured once more, and longer, while nothing compiles: before, the host was busy."""

Measure = Callable[[Callable[[], Any], float], float]
"""Calls what it is given for about so many seconds, and says how many one call takes on the device."""
Inputs = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_generators: dict[str, Inputs] = {}


def inputs_for(kernel: str, make: Inputs) -> None:
    """``make(arguments)`` gives tensors that are safe to tune `kernel` (``module.qualname``) with.

    It gets the recorded arguments, tensors by type, shape and strides, and returns those that it makes, by name.
    """
    _generators[kernel] = make


def on_device(call: Callable[[], Any], seconds: float) -> float:
    """The GPU time of a call: that of its kernels, however busy the host is with compiling others meanwhile."""
    from tritonprobe.gpu import bench

    milliseconds = seconds * 1e3
    found = bench(call, warmup=milliseconds / 4, rep=milliseconds, return_mode="median")
    assert isinstance(found, float)  # of one call; a list is for quantiles
    return found / 1e3


@dataclass(frozen=True, slots=True)
class Candidate:
    config: Any
    entry: Entry
    grid: tuple[int, ...]


def tune(replay: Replay, census: Census, tuned: Tuned, executor: Executor, measure: Measure | None = None) -> Tuned:
    """Chooses a configuration anew, and gives it to the tuner. Returns what a census says of that. Raises Stale.

    ``measure`` is `on_device` unless given.
    """
    measure = measure or on_device
    begin = time.monotonic_ns()
    tuner, candidates = _candidates(replay, census, tuned)
    arguments = _arguments(replay, tuned, jit_function(tuner))
    compiling: dict[Future[Any], Candidate] = {}
    for candidate in candidates:
        replay.prepare(candidate.entry)
        compiling[executor.submit(replay.replay, candidate.entry)] = candidate
    times: list[tuple[float, int, Candidate]] = []
    with _tuning(tuner, arguments) as bench:
        for place, future in enumerate(as_completed(compiling)):
            if future.exception() is None:  # one that does not compile is none that could win
                candidate = compiling[future]
                times.append((bench(candidate, lambda call: measure(call, QUICK_SECONDS)), place, candidate))
        times.sort()
        final = [
            (bench(candidate, lambda call: measure(call, LONG_SECONDS)), place, candidate)
            for _, place, candidate in times[:FINALISTS]
        ]
    best = min(final, default=None)
    if best is None or best[0] == float("inf"):
        raise Stale("no configuration of its autotuner runs")
    winner = best[2].config
    tuner.cache[decode(json.loads(tuned.key), replay.resolve)] = winner
    for entry in census.entries.values():
        if entry.kernel == tuned.kernel and entry.launched:
            replay.expand(entry, only=str(winner))  # launches in other classes of arguments will need it, too
    now = time.time_ns()
    return replace(
        tuned,
        environment=replay.environment.id,
        winner=text_of_json(str(winner)),
        measured=True,
        sessions=1,
        ns=time.monotonic_ns() - begin,
        first_ns=now,
        last_ns=now,
    )


def _candidates(replay: Replay, census: Census, tuned: Tuned) -> tuple[Any, list[Candidate]]:
    """The tuner with the most configurations that were tried for this call, and those."""
    jits = replay.kernels(tuned)
    tried = _tried([entry for entry in census.entries.values() if entry.kernel == tuned.kernel], tuned)
    best: tuple[Any, list[Candidate]] | None = None
    for tuner in living_tuners():
        if any(jit_function(tuner) is jit for jit in jits):
            found = [Candidate(c, *tried[str(c)]) for c in tuner.configs if str(c) in tried]
            if best is None or len(found) > len(best[1]):
                best = (tuner, found)
    if best is None:
        raise Stale("the kernel has no autotuner any more")
    if not best[1]:
        raise Stale("no trial was recorded of any configuration that its autotuner has")
    return best


def _tried(entries: list[Entry], tuned: Tuned) -> dict[str, tuple[Entry, tuple[int, ...]]]:
    """What each configuration of this key is compiled as, and launched with."""
    if tuned.trials:
        by_hash = {entry.hash: entry for entry in entries}
        return {config: (by_hash[digest], grid) for config, digest, grid in tuned.trials if digest in by_hash}
    # A census of those who did not write trials yet: it has grids where a variant was new.
    wanted = json.loads(tuned.call).get("arguments", {})
    tried: dict[str, tuple[Entry, tuple[int, ...]]] = {}
    for entry in entries:
        grid = _grid_of(entry, wanted)
        if grid is not None:
            tried.update(dict.fromkeys(entry.configs, (entry, grid)))
    return tried


def _grid_of(entry: Entry, wanted: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The grid of a launch of the entry with these arguments; a configuration's own come on top of them."""
    for call in map(json.loads, entry.calls):
        arguments = call.get("arguments", {})
        # As text: a call with True among its arguments equals one with 1.
        if "grid" in call and all(text_of_json(arguments.get(n)) == text_of_json(v) for n, v in wanted.items()):
            return tuple(call["grid"])
    return None


def _arguments(replay: Replay, tuned: Tuned, jit: Any) -> dict[str, Any]:
    """The recorded call's arguments, with fresh tensors. Raises Stale where none can be made safely."""
    recorded = json.loads(tuned.call).get("arguments", {})
    generator = _generators.get(tuned.kernel)
    made = dict(generator(recorded)) if generator is not None else {}
    for name in jit.arg_names:
        if name in made or name not in recorded:
            continue
        value = recorded[name]
        if isinstance(value, dict) and "tensor" in value:
            made[name] = _tensor(name, value["tensor"])
            continue
        try:
            made[name] = decode(value, replay.resolve)
        except EncodingError:
            raise Stale(f"argument {name} cannot be made to tune with") from None
    return {name: made[name] for name in jit.arg_names if name in made}


def _tensor(name: str, wanted: Mapping[str, Any]) -> Any:
    import torch

    dtype = getattr(torch, str(wanted["dtype"]).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise Stale(f"argument {name} holds {wanted['dtype']}, which may be indices: register inputs_for the kernel")
    shape, strides = wanted["shape"], wanted["strides"]
    if any(stride < 0 for stride in strides):
        raise Stale(f"argument {name} has negative strides")
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if all(shape) else 0
    skipped = 0 if wanted["aligned"] else 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.Generator(device)  # of its own: the program's random numbers stay as they would have been
    data = torch.empty(extent + skipped, dtype=torch.float32, device=device).uniform_(-1, 1, generator=source).to(dtype)
    return data.as_strided(shape, strides, skipped)


@contextmanager
def _tuning(tuner: Any, arguments: dict[str, Any]) -> Iterator[Callable[[Candidate, Callable[[Any], float]], float]]:
    """Triton's own trial, hooks and all, with our clock; and the tuner as it was, afterwards."""
    before = tuner.__dict__.get("do_bench")

    def bench(candidate: Candidate, clock: Callable[[Any], float]) -> float:
        def do_bench(call: Callable[[], Any], quantiles: Any) -> list[float]:
            return [clock(call)] * len(quantiles)

        tuner.__dict__["do_bench"] = do_bench
        fixed = {name: value for name, value in arguments.items() if name not in candidate.config.kwargs}
        tuner.nargs = dict(fixed)
        found: float = tuner._bench(config=candidate.config, grid=candidate.grid, warmup=False, **fixed)[0]
        return found

    try:
        yield bench
    finally:
        tuner.nargs = None
        tuner.__dict__.pop("do_bench", None)
        if before is not None:
            tuner.__dict__["do_bench"] = before
