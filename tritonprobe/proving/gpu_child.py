"""The process that `gpu` measures in: what windows cost launches and replays, how exact they are, how a tuner fares.

Run as ``python -m tritonprobe.proving.gpu_child``. Needs a GPU and torch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from tritonprobe.proving.intervals import base_first
from tritonprobe.proving.processes import Answer, Request, Say, answer

ROUND_SECONDS = 0.25
WARM_LAUNCHES = 300
GRAPH_KERNELS = 100
TUNING_WARMUP, TUNING_REP = 5, 20  # milliseconds of each configuration, on either clock

Switch = Callable[[], AbstractContextManager[None]]


def main(request: Request, say: Say) -> Answer:
    from tritonprobe.proving.document import described

    found = getattr(Parts(request["pairs"], request["seed"], say), request["part"])()
    return {"made": described(), "found": found}


class Parts:
    """One method a part; each starts with nothing probed."""

    def __init__(self, pairs: int, seed: int, say: Say) -> None:
        import torch
        import triton

        self.torch: Any = torch
        self.triton: Any = triton
        self.pairs, self.seed, self.say = pairs, seed, say
        self.x, self.y, self.out = (torch.zeros(1024, device="cuda") for _ in range(3))
        self.a, self.b, self.c = (torch.zeros(64, 64, device="cuda", dtype=torch.float16) for _ in range(3))

    def launches(self) -> dict[str, Any]:
        """Launches: unprobed, with windows as by default, inside a window that never ends, with a pair of events."""
        plain, watched = self._kernels(), self._kernels()
        times = self._watch(watched)
        calls: dict[str, Any] = {"add": self._add, "matmul": self._matmul}
        for launch in calls.values():
            launch(plain)
        few, short = max(self.pairs // 5, 10), ROUND_SECONDS / 5
        modes: list[tuple[str, Switch, int, float]] = [
            ("counting", self._nothing, few, short),
            ("default", partial(self._open_to_windows, times), self.pairs, ROUND_SECONDS),
            ("always_on", self._always_on, few, short),
        ]
        found = {}
        for mode, switch, pairs, seconds in modes:
            for name, launch in calls.items():
                base, other = (
                    partial(self._timed, partial(launch, plain)),
                    partial(self._timed, partial(launch, watched)),
                )
                found[f"{mode} {name}"] = self._pairs(base, other, switch, pairs, seconds)
            self.say(f"launches, {mode}")
        for name, launch in calls.items():
            alone = partial(launch, plain)
            between = partial(self._between_events, alone)
            found[f"events {name}"] = self._pairs(
                partial(self._timed, alone), partial(self._timed, between), self._nothing, few, short
            )
        return {"pairs": found, "windows": _counters()}

    def others(self) -> dict[str, Any]:
        """The other profilers, as `bench overhead` switches them."""
        from tritonprobe.proving.modes import WAYS

        plain = self._kernels()
        calls = {"add": partial(self._add, plain), "matmul": partial(self._matmul, plain)}
        for launch in calls.values():
            launch()
        shapes = {"add": (plain["add"], (3,)), "matmul": (plain["matmul"], (3, 4, 5))}
        found: dict[str, Any] = {}
        for way in ("proton", "proton_hook", "torch_profiler"):
            with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
                try:
                    other = WAYS[way](shapes, calls["add"], Path(folder))
                    for name, launch in calls.items():
                        timed = partial(self._timed, launch)
                        found[f"{way} {name}"] = self._pairs(
                            timed, timed, partial(_switched, other), max(self.pairs // 10, 10), 0.02
                        )
                    other.close()
                except Exception as error:
                    found[f"{way} unavailable"] = str(error).partition("\n")[0]
            self.say(f"others, {way}")
        return {"pairs": found}

    def graph(self) -> dict[str, Any]:
        """Replays of a graph of 100 tiny kernels: CUPTI not loaded, loaded, with windows as by default, always on."""
        plain = self._kernels()
        self._add(plain)
        graph = self._graph(plain)
        replay = partial(self._timed, graph.replay, batch=50, finish=True)
        replay(0.5)
        before = [replay(0.2) for _ in range(10)]
        times = self._watch(self._kernels())
        self._add(plain)
        first = [replay(0.2) for _ in range(10)]
        found = {
            "default": self._pairs(replay, replay, partial(self._open_to_windows, times), self.pairs, ROUND_SECONDS),
            "always_on": self._pairs(replay, replay, self._always_on, 10, 0.1),
        }
        after = [replay(0.2) for _ in range(10)]
        return {
            "replay_us_without_cupti": before, "replay_us_with_cupti_loaded": first, "replay_us_at_the_end": after,
            "pairs": found, "windows": _counters(),
        }  # fmt: skip

    def exact(self) -> dict[str, Any]:
        """100,000 launches from four threads, on four streams and on one: each record's label against its grid."""
        from tritonprobe.proving.gpu_exact import exact

        return exact(self.say, self.seed)

    def tuner(self) -> dict[str, Any]:
        """Ten tunings by each clock of a short add and of a small matmul: do they pick the same winner?"""
        from triton.testing import do_bench

        from tritonprobe.gpu import bench

        clocks: dict[str, Any] = {"do_bench": do_bench, "gpu.bench": bench}
        kernels = self._kernels()
        add = [
            (f"BLOCK={block}, num_warps={warps}", partial(self._add, kernels, block, warps))
            for block in (256, 1024)
            for warps in (1, 2, 4, 8)
        ]
        matmul = [
            (f"BLOCK={m},{n},{k}", partial(self._matmul, kernels, m, n, k))
            for m in (16, 64)
            for n in (16, 64)
            for k in (16, 64)
        ]
        found: dict[str, Any] = {}
        for name, configs in (("add", add), ("matmul", matmul)):
            for clock_name, clock in clocks.items():
                sessions = []
                for _ in range(10):
                    times: dict[str, float] = {
                        config: clock(call, warmup=TUNING_WARMUP, rep=TUNING_REP, quantiles=(0.5, 0.2, 0.8))[0]
                        for config, call in configs
                    }
                    sessions.append({"winner": min(times.items(), key=itemgetter(1))[0], "ms": times})
                found[f"{name} {clock_name}"] = sessions
                self.say(f"tuner, {name}, {clock_name}")
        return found

    def _kernels(self) -> dict[str, Any]:
        from tritonprobe.proving import kernels

        return {
            "add": self.triton.jit(kernels.add_kernel.fn),
            "matmul": self.triton.jit(kernels.matmul_kernel.fn),
        }

    def _add(self, kernels: dict[str, Any], block: int = 1024, warps: int = 4) -> None:
        grid = (-(-1024 // block),)
        kernels["add"][grid](self.x, self.y, self.out, 1024, BLOCK=block, num_warps=warps)

    def _matmul(self, kernels: dict[str, Any], m: int = 64, n: int = 64, k: int = 64) -> None:
        kernels["matmul"][64 // m, 64 // n](
            self.a, self.b, self.c, 64, 64, 64, 64, 1, 64, 1, 64, 1,
            BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, PRECISION="ieee",
        )  # fmt: skip

    def _graph(self, kernels: dict[str, Any]) -> Any:
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(GRAPH_KERNELS):
                self._add(kernels)
        return graph

    def _watch(self, kernels: dict[str, Any]) -> Any:
        """Windows over these kernels, from a clock that has passed its self-test; shut, to begin with."""
        from tritonprobe.probe import probe
        from tritonprobe.runtime import configure, current

        configure(gpu_windows=True)
        for kernel in kernels.values():
            probe(kernel)
        self._add(kernels)
        self._matmul(kernels)
        self.torch.cuda.synchronize()
        watch = current().adapter.gpu
        assert watch is not None
        watch.times.window(0.01)
        if watch.times.info[0] != "cupti":
            raise RuntimeError(f"no records: {watch.times.info[1]}")
        watch.times.begins("bench")
        return watch.times

    @contextmanager
    def _open_to_windows(self, times: Any) -> Iterator[None]:
        times.ends("bench")
        try:
            yield
        finally:
            times.begins("bench")

    @contextmanager
    def _always_on(self) -> Iterator[None]:
        """What a launch in a window pays, for as long as the block lasts."""
        from tritonprobe.gpu.cupti import the_cupti
        from tritonprobe.runtime import current

        cupti, windows = the_cupti(), current().adapter.windows
        seen: list[Any] = []
        with cupti.use:
            cupti.register()
            windows.open(seen.append)
            cupti.enable()
            try:
                yield
            finally:
                cupti.disable()
                windows.close(seen.append)
                self.torch.cuda.synchronize()
                cupti.collect(10.0)
                cupti.discard()

    @contextmanager
    def _nothing(self) -> Iterator[None]:
        yield

    def _between_events(self, launch: Callable[[], Any]) -> None:
        first, second = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        launch()
        second.record()

    def _pairs(
        self,
        base: Callable[[float], float],
        other: Callable[[float], float],
        switch: Switch,
        pairs: int,
        seconds: float,
    ) -> dict[str, list[float]]:
        """Microseconds a call, in rounds that take turns."""
        found: dict[str, list[float]] = {"base": [], "other": []}
        for first in base_first(pairs, self.seed):
            for is_base in (first, not first):
                if is_base:
                    found["base"].append(base(seconds))
                else:
                    with switch():
                        found["other"].append(other(seconds))
        return found

    def _timed(self, call: Callable[[], Any], seconds: float, batch: int = 100, finish: bool = False) -> float:
        """The mean of a round: a window in it must count."""
        for _ in range(WARM_LAUNCHES if not finish else 10):
            call()
        self.torch.cuda.synchronize()
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for _ in range(batch):
                call()
            calls += batch
            if finish:
                self.torch.cuda.synchronize()
        self.torch.cuda.synchronize()
        return spent / calls * 1e6


@contextmanager
def _switched(way: Any) -> Iterator[None]:
    way.on()
    try:
        yield
    finally:
        way.off()


def _counters() -> dict[str, dict[str, float]]:
    """What the windows said of themselves."""
    from tritonprobe.ledger import Sample
    from tritonprobe.runtime import current

    wanted = ("gpu_windows_total", "gpu_launches_total", "self_seconds_total", "errors_total")
    return {
        family.metric.name: {",".join(s.labels): s.value for s in family.samples if isinstance(s, Sample)}
        for family in current().ledger.collect()
        if family.metric.name in wanted
    }


if __name__ == "__main__":
    answer(main)
