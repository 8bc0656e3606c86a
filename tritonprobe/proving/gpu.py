"""What GPU times cost and how good they are: launches, replays, attribution, and the clock as an autotuner's.

Each part runs in a process of its own (`gpu_child`), for CUPTI stays loaded once it is. This module knows no CUDA.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tritonprobe.proving.intervals import Interval, differences, interval, ratios
from tritonprobe.proving.processes import MeasuringError, Say, ask, environment

REFERENCE_CLOCK = "gpu.bench"
PARTS = ("launches", "others", "graph", "graph_measured", "exact", "tuner", "consumer")
LAUNCH_RATIO, REPLAY_RATIO = 1.03, 1.013
"""What windows may cost at most by default: a launch against an unprobed one, and a replay of 100 tiny kernels."""
CONSUMER_US = 0.15
"""What reading and attributing a record may take."""


@dataclass(frozen=True, slots=True)
class Gpu:
    parts: Mapping[str, Any]
    failed: Mapping[str, str]
    made: Mapping[str, Any]
    seed: int

    def compared(self) -> dict[str, tuple[Interval, Interval]]:
        """By what was compared: the difference in microseconds, and the ratio."""
        found = {}
        for part in self.parts:
            for name, pairs in self.parts[part].get("pairs", {}).items():
                if isinstance(pairs, dict):
                    found[f"{part}: {name}"] = self._interval(pairs["base"], pairs["other"])
        return found

    def shares(self) -> dict[str, Interval]:
        """By part and kernel: the share of the program's time that windows cost, as often as they come."""
        found = {}
        for part in self.parts:
            period = self.parts[part].get("budget", {}).get("period_s")
            for name, pairs in self.parts[part].get("windows_us", {}).items():
                found[f"{part}: {name}"] = interval(
                    [us / 1e6 / period for us in differences(pairs["base"], pairs["other"])], self.seed
                )
        return found

    def by_default(self) -> dict[str, float]:
        """Upper end of the ratio that a program has by default: between windows, and what its windows cost."""
        compared, shares = self.compared(), self.shares()
        found = {
            name: compared[f"launches: between_windows {name}"][1].high + shares[f"launches: {name}"].high
            for name in self.parts.get("launches", {}).get("windows_us", {})
        }
        if "graph" in self.parts:
            found["replay"] = compared["graph: replay"][1].high
        return found

    def _interval(self, base: list[float], other: list[float]) -> tuple[Interval, Interval]:
        return interval(differences(base, other), self.seed), interval(ratios(base, other), self.seed)

    def steady(self) -> dict[str, int]:
        """By kernel and clock: in how many of the tunings the most frequent winner won."""
        found = {}
        for name, sessions in self.parts.get("tuner", {}).items():
            winners = [session["winner"] for session in sessions]
            found[name] = max(winners.count(winner) for winner in winners)
        return found

    def slower_than_best(self) -> dict[str, float]:
        """By kernel and clock: how much slower the worst of its ten winners is than the best configuration.

        Of how long each takes the medians of ten measurements by `gpu.bench` decide. Of configurations that take the
        same any may win.
        """
        found = {}
        sessions = self.parts.get("tuner", {})
        for name in sessions:
            ms = [session["ms"] for session in sessions.get(f"{name.split()[0]} {REFERENCE_CLOCK}", ())]
            if ms:
                takes = {config: median(each[config] for each in ms) for config in ms[0]}
                worst = max(takes[session["winner"]] for session in sessions[name])
                found[name] = worst / min(takes.values()) - 1
        return found

    def consumer_us(self) -> float | None:
        """Processor time of the window's own thread by record, of the median window. None: not measured."""
        windows = self.parts.get("consumer", {}).get("consumer", ())
        each = [window["ns"] / 1e3 / window["records"] for window in windows if window["records"]]
        return median(each) if each else None

    @property
    def good(self) -> bool:
        kept = [
            ratio <= (REPLAY_RATIO if name == "replay" else LAUNCH_RATIO) for name, ratio in self.by_default().items()
        ]
        wrong = [setting["wrong"] == 0 for setting in self.parts.get("exact", {}).values()]
        consumer = self.consumer_us()
        return not self.failed and all((*kept, *wrong)) and (consumer is None or consumer <= CONSUMER_US)


def measure(pairs: int, seed: int, parts: tuple[str, ...], say: Say) -> Gpu:
    """Measures; a part that fails is left out and named. Raises MeasuringError if all fail."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    made: Mapping[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
        for part in parts:
            say(part)
            request = {"part": part, "pairs": pairs, "seed": seed}
            try:
                told = ask("tritonprobe.proving.gpu_child", request, environment(Path(folder), None), say)
            except MeasuringError as error:
                failed[part] = str(error)
                say(f"{part} failed: {error}")
                continue
            found[part], made = told["found"], told["made"]
    if not made:
        raise MeasuringError("; ".join(failed.values()))
    return Gpu(found, failed, made, seed)


def body(found: Gpu) -> dict[str, Any]:
    """The figures as JSON has them, with every raw value."""
    return {
        "bound": {"launch_ratio": LAUNCH_RATIO, "replay_ratio": REPLAY_RATIO, "consumer_us": CONSUMER_US},
        "good": found.good,
        "compared": {
            name: {"difference_us": asdict(difference), "ratio": asdict(ratio)}
            for name, (difference, ratio) in found.compared().items()
        },
        "share_of_time_in_windows": {name: asdict(share) for name, share in found.shares().items()},
        "by_default_at_most": found.by_default(),
        "same_winner_of_ten": found.steady(),
        "worst_winner_slower_than_best": found.slower_than_best(),
        "consumer_us_a_record": found.consumer_us(),
        "failed": dict(found.failed),
        "parts": dict(found.parts),
    }
