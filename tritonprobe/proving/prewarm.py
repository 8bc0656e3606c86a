"""How long until a tuned kernel is ready: Triton's own serial first call against a prewarm of the same census.

Two processes with an empty cache each. The first makes Triton's own first call of a kernel with 24 configurations, and
leaves its census; the second, its imports done, replays that: all candidates are compiled in threads and measured as
they arrive. Then every configuration is measured at leisure, to see how good the winner is. The measuring itself is in
`prewarm_child`; this module knows no Triton.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonprobe.proving.processes import Say, ask, environment

SHARE = 0.35
"""Of the serial first call that a prewarm may take."""
SLOWER = 1.02
"""Of the best configuration's time that the winner's may be."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Seconds. ``winner`` and ``best`` are times of one launch on the device, by configuration."""

    serial: float
    prewarmed: float
    first_call: float
    cold_after: int
    cubins: int
    serial_winner: str
    winner: str
    best: str
    seconds: Mapping[str, float]  # of each configuration, measured alone afterwards; empty without a GPU
    threads: int
    made: Mapping[str, Any]

    @property
    def share(self) -> float:
        return self.prewarmed / self.serial

    @property
    def slower(self) -> float | None:
        """The winner's time in those of the best; None where nothing was measured."""
        return self.seconds[self.winner] / self.seconds[self.best] if self.seconds else None

    @property
    def good(self) -> bool:
        return self.share <= SHARE and self.cold_after == 0 and (self.slower is None or self.slower <= SLOWER)


def measure(side: int, device: str | None, say: Say) -> Prewarm:
    """Raises MeasuringError."""
    with tempfile.TemporaryDirectory(prefix="tritonprobe-bench-") as folder:
        census = Path(folder) / "census.json"
        told: dict[str, Any] = {}
        for part in ("serial", "prewarmed"):
            request = {"part": part, "side": side, "census": str(census)}
            env = environment(Path(folder) / part, device)
            told.update(ask("tritonprobe.proving.prewarm_child", request, env, say))
    return Prewarm(**told)


def body(found: Prewarm) -> dict[str, Any]:
    return {
        "bound": {"share": SHARE, "slower": SLOWER},
        "good": found.good,
        "serial_seconds": found.serial,
        "prewarm_seconds": found.prewarmed,
        "share": found.share,
        "first_call_seconds": found.first_call,
        "cold_calls_after": found.cold_after,
        "binaries": found.cubins,
        "threads": found.threads,
        "serial_winner": found.serial_winner,
        "winner": found.winner,
        "best": found.best,
        "winner_in_best": found.slower,
        "configuration_seconds": dict(found.seconds),
    }
