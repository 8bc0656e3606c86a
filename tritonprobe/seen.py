"""What windows see of launches, and the few things that may be asked of the adapter's window mechanism.

Plain data and protocols, so that `adapter` and `gpu` need not know each other. A launch's place in the order is drawn
from one counter of the whole process, before and after Triton's launcher ran: where two such intervals do not overlap,
the launches reached the GPU's queues in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeAlias

CAPTURE, FIRST_CAPTURE = "capture", "first capture"
"""What `GpuTimes.begins` is told of: a graph's capture, and the first one of the process."""

NOTHING_RUNS: list[Callable[[], bool]] = []
"""Say whether launches do nothing now. The compile-only device, once it was active, is one of them."""

Label: TypeAlias = "tuple[str, str]"
"""Kernel and bucket, as the metrics name them."""

TracedStep: TypeAlias = "tuple[int, int, int, tuple[tuple[str, str], ...]]"
"""A step of traced requests: its start and end on the monotonic clock, its thread, and their traces."""


class Binary(Protocol):
    """One loaded binary of a watched kernel."""

    @property
    def name(self) -> str:
        """The function's name in the binary, which is what a GPU record shows."""

    @property
    def kernel_name(self) -> str:
        """The kernel's name in metrics."""

    @property
    def ctas(self) -> int:
        """Blocks of a cluster: a record's grid is so many times wider."""

    def label(self, key: Hashable) -> Label:
        """Kernel and bucket of a launch whose bucket's arguments are `key`."""


class Seen(NamedTuple):
    """One launch that went through Triton's launcher. `before`, `after`: its place in the order."""

    binary: Binary
    target: tuple[int, int, int, int]  # grid and stream, as the launcher got them
    key: Hashable
    before: int
    after: int
    start_ns: int  # of the launcher, on time.perf_counter_ns
    end_ns: int
    returned: bool  # False: the launcher raised
    trial: bool  # an autotune trial
    mark: object  # what `LaunchWindows.around` made of it
    thread: int = 0  # that launched it, as `tritonprobe.requests` numbers them


Sink = Callable[[Seen], None]


class Around(Protocol):
    """Something to be done right before and right after each launch, on the launching thread. Must not raise."""

    def before(self, stream: int) -> object: ...
    def after(self, mark: object) -> None: ...


class LaunchSource(Protocol):
    """The adapter's window mechanism, as this room uses it."""

    def tick(self) -> int:
        """The next place in the order."""

    def open(self, sink: Sink, around: Around | None = None) -> None:
        """From now on `sink` is told of each launch."""

    def close(self, sink: Sink) -> None:
        """The launchers are Triton's own again, unless another window is open."""

    def settle(self, seconds: float) -> bool:
        """Waits until every launch that began before `open` is through. False: some is not."""

    def drained(self, seconds: float) -> bool:
        """Waits until every launch now under way was told of. False: some was not."""

    def at_gap(self, act: Callable[[], None], seconds: float) -> bool:
        """Has `act` called between two launches, by a launching thread if one comes within `seconds`; else here.

        True if no launch was under way.
        """
