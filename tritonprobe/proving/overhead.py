"""What watching costs a hot launch: tritonprobe and the other ways, each against the same launch unwatched.

Interleaved rounds in one process (`rounds`), medians with intervals (`intervals`), and beside every figure how much
two equal rounds differ. What owns the GPU's profiling interface gets a process of its own. This module knows no Triton.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tritonprobe.proving.intervals import CONFIDENCE, Interval, differences, interval, ratios
from tritonprobe.proving.processes import MeasuringError, Say, ask, environment
from tritonprobe.proving.rounds import BATCH, WARM_UP, Rounds

NOISE = 0.01
"""If two equal rounds may differ by more than this, the comparison says nothing."""
PROMISE_US, PROMISE_RATIO = 0.35, 1.03
"""What tritonprobe may cost a hot launch on a GPU, at the upper end of the interval."""
FEWEST = 2
OTHERS_SHARE = 5
"""The other ways get one pair for so many of ours: they are there to compare with."""
ARGUMENTS = {"add": 5, "matmul": 16}


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    way: str  # how it is switched on and off, see `modes.WAYS`
    title: str
    gpu: bool = False  # needs launches that do something


MODES = (
    Mode("ours", "ours", "instrument()"),
    Mode("op", "ours", "instrument(), and an op"),
    Mode("wrapper", "wrapper", "wrapper around run()"),
    Mode("pre_run_hook", "pre_run_hook", "pre_run_hook"),
    Mode("launch_hooks", "launch_hooks", "launch hooks, no-op", gpu=True),
    Mode("proton", "proton", "Proton", gpu=True),
    Mode("proton_hook", "proton_hook", "Proton, launch hook", gpu=True),
    Mode("torch_profiler", "torch_profiler", "torch.profiler", gpu=True),
)
# The ways that share a process; one that fails takes only its own process with it.
PROCESSES = (("ours", "wrapper", "pre_run_hook", "launch_hooks"), ("proton",), ("proton_hook",), ("torch_profiler",))


@dataclass(frozen=True, slots=True)
class Result:
    """One mode and one kernel."""

    mode: Mode
    kernel: str
    rounds: Rounds
    difference_us: Interval
    ratio: Interval
    noise: Interval  # the ratio of two equal rounds

    @classmethod
    def of(cls, mode: Mode, kernel: str, rounds: Rounds, seed: int) -> Result:
        return cls(
            mode,
            kernel,
            rounds,
            interval(differences(rounds.base, rounds.other), seed),
            interval(ratios(rounds.base, rounds.other), seed),
            interval(ratios(rounds.base, rounds.again), seed),
        )

    @property
    def noisy(self) -> bool:
        return self.noise.farthest_from(1) > NOISE

    @property
    def keeps_promise(self) -> bool:
        return self.difference_us.high <= PROMISE_US and self.ratio.high <= PROMISE_RATIO


@dataclass(frozen=True, slots=True)
class Overhead:
    results: tuple[Result, ...]
    unavailable: Mapping[str, str]  # by mode, why
    counting: str  # how tritonprobe counted: native, or dearer, inline or pre_run_hook
    made: Mapping[str, Any]

    @property
    def ours(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.mode.name == "ours")

    @property
    def inconclusive(self) -> bool:
        return any(result.noisy for result in self.ours)

    @property
    def promise_kept(self) -> bool | None:
        """None where it cannot be said: the noise is too high, or launches do nothing and cost next to nothing."""
        if self.inconclusive or str(self.made["device"]).startswith("compile-only"):
            return None
        return all(result.keeps_promise for result in self.ours)

    @property
    def good(self) -> bool:
        return not self.inconclusive and self.promise_kept is not False


def measure(pairs: int, launches: int, seed: int, device: str | None, say: Say) -> Overhead:
    """Measures every mode that the device allows. Raises MeasuringError if tritonprobe itself could not be measured."""
    unavailable = {}
    if device is not None:
        unavailable = {mode.name: "launches do nothing on the compile-only device" for mode in MODES if mode.gpu}
    rounds: dict[str, dict[str, Any]] = {}
    made: Mapping[str, Any] = {}
    counting = "none"
    with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
        env = environment(Path(folder), None)
        for ways in PROCESSES:
            asked = [(way, pairs if way == "ours" else others(pairs)) for way in ways if way not in unavailable]
            if not asked:
                continue
            try:
                told = ask(
                    "tritonprobe.proving.overhead_child",
                    {"ways": asked, "launches": launches, "seed": seed, "device": device},
                    env,
                    say,
                )
            except MeasuringError as error:
                if "ours" in ways:
                    raise
                unavailable.update(dict.fromkeys(ways, str(error)))
                continue
            rounds.update(told["rounds"])
            unavailable.update(told["unavailable"])
            if "ours" in ways:
                made, counting = told["made"], told["counting"]
    results = tuple(
        Result.of(mode, kernel, Rounds(**each), seed)
        for mode in MODES
        for kernel, each in rounds.get(mode.name, {}).items()
    )
    return Overhead(results, unavailable, counting, made)


def others(pairs: int) -> int:
    """How many pairs the ways that are not ours get."""
    return max(FEWEST, pairs // OTHERS_SHARE)


def body(overhead: Overhead, launches: int, seed: int) -> dict[str, Any]:
    """The figures as JSON has them, with each round's microseconds a launch."""
    return {
        "confidence": CONFIDENCE,
        "seed": seed,
        "round": {"launches": launches, "batch": BATCH, "warm_up": WARM_UP},
        "noise_limit": NOISE,
        "inconclusive": overhead.inconclusive,
        "promise": {"difference_us": PROMISE_US, "ratio": PROMISE_RATIO, "kept": overhead.promise_kept},
        "counting": overhead.counting,
        "results": [
            {
                "mode": result.mode.name,
                "title": result.mode.title,
                "kernel": result.kernel,
                "arguments": ARGUMENTS[result.kernel],
                "pairs": len(result.rounds.base),
                "base_us": median(result.rounds.base),
                "difference_us": asdict(result.difference_us),
                "ratio": asdict(result.ratio),
                "noise_ratio": asdict(result.noise),
                "noisy": result.noisy,
                # A tenth of a nanosecond is below what the clock can tell.
                "rounds_us": {name: [round(us, 4) for us in each] for name, each in asdict(result.rounds).items()},
            }
            for result in overhead.results
        ],
        "unavailable": dict(overhead.unavailable),
    }
