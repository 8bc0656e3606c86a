"""What a clock for GPU time is, whatever its method; `times` asks one. Light: needs neither numpy nor CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tritonprobe.model import GpuLaunches, GpuSample, WindowOutcome
from tritonprobe.seen import Label, TracedStep

MAX_CAPTURES = 8192
"""Captures of CUDA graphs that are kept, of graphs that are there still; the oldest go first. An engine that captures
its model in pieces has one for each piece and each batch size."""
MAX_NODES = 1_000_000
"""Nodes kept of all captures, and of all graphs. The oldest go first."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What became of a window."""

    outcome: WindowOutcome
    samples: tuple[GpuSample, ...] = ()
    launches: int = 0
    replayed: int = 0  # kernels, by graphs
    switching: float = 0.0  # seconds in which CUPTI came and went; others may have waited for them, too


class NotYet(Exception):  # noqa: N818  # it is no error
    """There is nothing to measure yet; the message says what is missing."""


class NeverAgain(RuntimeError):  # noqa: N818
    """GPU times end here; the message says why."""


class ProgramView(Protocol):
    """What a clock asks about the program."""

    def is_busy(self) -> bool:
        """Whether a capture, another profiler or a fork is under way: records must stay off."""

    def may_cupti_leave(self) -> bool:
        """Whether CUPTI may be taken out of the process now: there are no graphs, no capture, no other profiler."""

    def refuses(self, back: bool) -> str | None:
        """Why CUPTI must not come into this process any more, if so. `back`: it would come back."""

    def saw_replays(self) -> None:
        """A record of a graph was seen."""

    def traced_steps(self, since: int, until: int) -> Sequence[TracedStep]:
        """The steps between two times that had traced requests."""

    def tell(self, launches: GpuLaunches) -> None:
        """Of launches in such steps."""

    def rename(self, name: str) -> str:
        """What a foreign kernel of that name is to be counted as."""


class Clock(Protocol):
    method: str
    why: str

    def look(self, seconds: float, wait: Callable[[float], object]) -> Looked:
        """Holds a window open and counts what it saw. May raise CuptiError, DriverError and RecordError.

        ``wait`` sleeps, and says whether windows were stopped.
        """

    def cut(self) -> None:
        """Ends the window that is open, for nothing; records are off when this returns."""

    def rest(self) -> None:
        """Nothing is on and nothing outstanding."""

    def captured(self, launches: list[tuple[tuple[str, int], Label]], alive: Callable[[], bool]) -> int:
        """A graph was captured, with these launches: function and grid (as `records.grid_code` has it), and label.

        Returns how many captures were given up for it.
        """
