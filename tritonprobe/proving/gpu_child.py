"""The process that `gpu` measures in: what windows cost launches and replays, how exact they are, how a tuner fares.

Run as ``python -m tritonprobe.proving.gpu_child``. Needs a GPU and torch.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from tritonprobe.proving.intervals import base_first
from tritonprobe.proving.processes import Answer, Request, Say, answer
from tritonprobe.proving.rounds import timed

ROUND_LAUNCHES = 1000
WINDOWED_LAUNCHES = 4000  # of a round with one window in it, or none
WARM_LAUNCHES = 300
GRAPH_KERNELS = 100
GRAPH_REPLAYS = 200
SEVERAL = 20  # rounds of what needs fewer
MATMUL_SIDES = 64, 256  # of those to tune; of the first the best two configurations nearly tie
CONSUMED_SECONDS = 0.5  # of a window with as many records as come in it

Switch = Callable[[], AbstractContextManager[None]]
Timings = Mapping[str, Callable[[], float]]


def main(request: Request, say: Say) -> Answer:
    from tritonprobe.proving.document import described

    found = getattr(Parts(request["pairs"], request["seed"], say), request["part"])()
    return {"made": described(), "found": found}


class Parts:
    """One method a part; each starts with nothing probed."""

    def __init__(self, pairs: int, seed: int, say: Say) -> None:
        import torch

        from tritonprobe.proving import kernels

        self.torch: Any = torch
        self.pairs, self.seed, self.say = pairs, seed, say
        self.kernels = {"add": kernels.add_kernel, "matmul": kernels.matmul_kernel}
        self.x, self.y, self.out = (torch.zeros(1024, device="cuda") for _ in range(3))
        self.squares = {
            side: [torch.zeros(side, side, device="cuda", dtype=torch.float16) for _ in range(3)]
            for side in MATMUL_SIDES
        }
        self._add()
        self._matmul()

    def launches(self) -> dict[str, Any]:
        """Launches: unprobed, with everything on between two windows, with one window, always recorded, with events."""
        times = self._watch("on")
        calls: dict[str, Callable[[], Any]] = {"add": self._add, "matmul": self._matmul}
        medians = {name: partial(self._median, call) for name, call in calls.items()}
        found: dict[str, Any] = {}
        for mode, switch, pairs in (
            ("between_windows", self._instrumented, self.pairs),
            ("always_on", self._always_on, SEVERAL),
        ):
            for name, each in self._pairs(medians, medians, switch, pairs).items():
                found[f"{mode} {name}"] = each
            self.say(f"launches, {mode}")
        evented = {name: partial(self._median, partial(self._between_events, call)) for name, call in calls.items()}
        for name, each in self._pairs(medians, evented, self._nothing, SEVERAL).items():
            found[f"events {name}"] = each
        whole = {name: partial(self._whole, call, WINDOWED_LAUNCHES) for name, call in calls.items()}
        with self._instrumented():
            windows = self._pairs(whole, self._with_window(times, whole), self._nothing, SEVERAL)
        self.say("launches, in windows")
        return {"pairs": found, "windows_us": windows, **_counters(times)}

    def others(self) -> dict[str, Any]:
        """The other profilers, as `bench overhead` switches them."""
        from tritonprobe.proving.modes import WAYS

        calls: dict[str, Callable[[], Any]] = {"add": self._add, "matmul": self._matmul}
        shapes = {"add": (self.kernels["add"], (3,)), "matmul": (self.kernels["matmul"], (3, 4, 5))}
        found: dict[str, Any] = {}
        for way in ("proton", "proton_hook", "torch_profiler"):
            with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
                try:
                    other = WAYS[way](shapes, calls["add"], Path(folder))
                    medians = {name: partial(self._median, call) for name, call in calls.items()}
                    for name, each in self._pairs(medians, medians, partial(_switched, other), SEVERAL).items():
                        found[f"{way} {name}"] = each
                    other.close()
                except Exception as error:
                    found[f"{way} unavailable"] = str(error).partition("\n")[0]
            self.say(f"others, {way}")
        return {"pairs": found}

    def consumer(self) -> dict[str, Any]:
        """Processor time that a window's thread takes to read the records of two kernels, attribute and count them.

        Meanwhile another thread goes on launching, as in a server: waiting for the interpreter's lock costs, too.
        """
        times = self._watch("on")
        spent: list[int] = []

        def timing(function: Callable[..., Any]) -> Callable[..., Any]:
            def timed_call(*args: Any) -> Any:
                begin = time.thread_time_ns()
                found = function(*args)
                spent.append(time.thread_time_ns() - begin)
                return found

            return timed_call

        clock = times._clock
        clock.consume, clock._cupti.records = timing(clock.consume), timing(clock._cupti.records)
        windows: list[dict[str, int]] = []
        with self._instrumented():
            for _ in range(SEVERAL):
                done = threading.Event()
                launching = threading.Thread(target=self._launch_until, args=(done,))
                launching.start()
                spent.clear()
                samples = times.window(CONSUMED_SECONDS)
                done.set()
                launching.join()
                windows.append({"ns": sum(spent), "records": sum(sample.count for sample in samples)})
        return {"consumer": windows}

    def _launch_until(self, done: threading.Event) -> None:
        while not done.is_set():
            for _ in range(ROUND_LAUNCHES // 2):
                self._add()
                self._matmul()
            self.torch.cuda.synchronize()

    def graph(self) -> dict[str, Any]:
        """Replays of a graph of 100 tiny kernels, with windows as by default: a program with graphs is left alone."""
        from tritonprobe.runtime import configure, current

        replay = {"replay": partial(self._whole, self._graph().replay, GRAPH_REPLAYS)}
        configure(gpu_windows="on")
        with self._instrumented():
            watch = current().adapter.gpu
            assert watch is not None
            assert watch.times.window(0.01) == ()
        found = self._pairs(replay, replay, self._instrumented, 2 * SEVERAL)
        return {"pairs": found, "info": watch.times.info}

    def graph_measured(self) -> dict[str, Any]:
        """The same replays, measured too: CUPTI not loaded, loaded, in a window, always on."""
        graph = self._graph()
        replay = partial(self._whole, graph.replay, GRAPH_REPLAYS)
        before = [replay() for _ in range(2 * SEVERAL)]
        times = self._watch("graphs")
        with self._instrumented():
            loaded = [replay() for _ in range(2 * SEVERAL)]
            whole = {"replays": partial(self._whole, graph.replay, 10 * GRAPH_REPLAYS)}
            windows = self._pairs(whole, self._with_window(times, whole), self._nothing, SEVERAL)
        with self._always_on():
            always = [replay() for _ in range(5)]
        return {
            "pairs": {"between_windows": {"base": before, "other": loaded}},
            "always_on_us": always,
            "windows_us": windows,
            **_counters(times),
        }

    def _graph(self) -> Any:
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(GRAPH_KERNELS):
                self._add()
        for _ in range(20 * GRAPH_REPLAYS):
            graph.replay()
        return graph

    def exact(self) -> dict[str, Any]:
        """100,000 launches from four threads, on four streams and on one: each record's label against its grid."""
        from tritonprobe.proving.gpu_exact import exact

        return exact(self.say, self.seed)

    def tuner(self) -> dict[str, Any]:
        """Ten tunings by each clock of a short add and of two small matmuls, as an autotuner calls it: who wins?"""
        from triton.testing import do_bench

        from tritonprobe.gpu import bench

        clocks: dict[str, Any] = {"do_bench": do_bench, "gpu.bench": bench}
        tuned = {
            "add": [
                (f"BLOCK={block}, num_warps={warps}", partial(self._add, block, warps))
                for block in (256, 1024)
                for warps in (1, 2, 4, 8)
            ]
        }
        for side in self.squares:
            tuned[f"matmul_{side}"] = [
                (f"BLOCK={m},{n},{k}", partial(self._matmul, m, n, k, side)) for m, n, k in product((16, 64), repeat=3)
            ]
        found: dict[str, Any] = {}
        for name, configs in tuned.items():
            for clock_name, clock in clocks.items():
                sessions = []
                for _ in range(10):
                    times: dict[str, float] = {
                        config: clock(call, quantiles=(0.5, 0.2, 0.8))[0] for config, call in configs
                    }
                    sessions.append({"winner": min(times.items(), key=itemgetter(1))[0], "ms": times})
                found[f"{name} {clock_name}"] = sessions
                self.say(f"tuner, {name}, {clock_name}")
        return found

    def _add(self, block: int = 1024, warps: int = 4) -> None:
        grid = (-(-1024 // block),)
        self.kernels["add"][grid](self.x, self.y, self.out, 1024, BLOCK=block, num_warps=warps)

    def _matmul(self, m: int = 64, n: int = 64, k: int = 64, side: int = 64) -> None:
        self.kernels["matmul"][side // m, side // n](
            *self.squares[side], side, side, side, side, 1, side, 1, side, 1,
            BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, PRECISION="ieee",
        )  # fmt: skip

    def _watch(self, windows: str) -> Any:
        """GPU times that have passed their self-test and had one window. Nothing is probed when this returns."""
        from tritonprobe.runtime import configure, current

        configure(gpu_windows=windows)
        with self._instrumented():
            watch = current().adapter.gpu
            assert watch is not None
            watch.times.window(0.01)
            if watch.times.info[0] != "cupti":
                raise RuntimeError(f"no records: {watch.times.info[1]}")
        return watch.times

    @contextmanager
    def _instrumented(self) -> Iterator[None]:
        """Everything on, but windows come when they are asked for."""
        from tritonprobe.probe import instrument, uninstrument
        from tritonprobe.runtime import current

        instrument()
        watch = current().adapter.gpu
        assert watch is not None
        watch.times.stop()
        try:
            yield
        finally:
            uninstrument()

    @contextmanager
    def _always_on(self) -> Iterator[None]:
        """What a launch in a window pays, for as long as the block lasts."""
        from tritonprobe.gpu import torch_graphs
        from tritonprobe.gpu.cupti import the_cupti
        from tritonprobe.gpu.driver import Driver
        from tritonprobe.runtime import current

        graphs = torch_graphs.are_there_any()
        cupti, windows = the_cupti(), current().adapter.windows
        seen: list[Any] = []
        sink = seen.append
        with self._instrumented(), cupti.use:
            cupti.attach()
            windows.open(sink)
            cupti.enable()
            try:
                yield
            finally:
                cupti.disable()
                windows.close(sink)
                self.torch.cuda.synchronize()
                cupti.collect(10.0)
                cupti.discard()
                if not graphs:
                    cupti.leave(Driver())

    def _with_window(self, times: Any, rounds: Timings) -> Timings:
        """Rounds with one window in each, as long as the budget has it."""

        def windowed(each: Callable[[], float]) -> float:
            thread = threading.Thread(target=lambda: times.window(times.budget.seconds))
            thread.start()
            took = each()
            thread.join()
            return took

        return {name: partial(windowed, each) for name, each in rounds.items()}

    @contextmanager
    def _nothing(self) -> Iterator[None]:
        yield

    def _between_events(self, launch: Callable[[], Any]) -> None:
        first, second = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        launch()
        second.record()

    def _pairs(self, base: Timings, other: Timings, switch: Switch, pairs: int) -> dict[str, dict[str, list[float]]]:
        """Microseconds by name, in rounds that take turns."""
        found: dict[str, dict[str, list[float]]] = {name: {"base": [], "other": []} for name in base}
        for first in base_first(pairs, self.seed):
            for is_base in (first, not first):
                with self._nothing() if is_base else switch():
                    for name, each in (base if is_base else other).items():
                        found[name]["base" if is_base else "other"].append(each())
        return found

    def _median(self, call: Callable[[], Any]) -> float:
        """Microseconds a launch, as `bench overhead` takes them."""
        for _ in range(WARM_LAUNCHES):
            call()
        self.torch.cuda.synchronize()
        found = timed(call, ROUND_LAUNCHES)
        self.torch.cuda.synchronize()
        return found

    def _whole(self, call: Callable[[], Any], calls: int) -> float:
        """Microseconds of so many calls and their end on the GPU."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6


@contextmanager
def _switched(way: Any) -> Iterator[None]:
    way.on()
    try:
        yield
    finally:
        way.off()


def _counters(times: Any) -> dict[str, Any]:
    """What the windows said of themselves, and how often they would come."""
    from tritonprobe.ledger import Sample
    from tritonprobe.runtime import current

    wanted = ("gpu_windows_total", "gpu_launches_total", "self_seconds_total", "errors_total")
    return {
        "counters": {
            family.metric.name: {",".join(s.labels): s.value for s in family.samples if isinstance(s, Sample)}
            for family in current().ledger.collect()
            if family.metric.name in wanted
        },
        "budget": {
            "share": times.budget.share, "period_s": times.budget.period, "window_s": times.budget.seconds,
        },
    }  # fmt: skip


if __name__ == "__main__":
    answer(main)
