"""GPU times, as the adapter wires them up: windows of launches, captures of graphs, other profilers. If switched on.

With `TRITONPROBE_GPU_WINDOWS` not set none of this is made, and `tritonprobe.gpu` is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tritonprobe.adapter import device
from tritonprobe.adapter.captures import Captures
from tritonprobe.adapter.inductor_names import canonical_name
from tritonprobe.adapter.profilers import Profilers
from tritonprobe.adapter.windows import LaunchWindows
from tritonprobe.ledger.store import Ledger

if TYPE_CHECKING:
    from tritonprobe.gpu.times import GpuTimes

log = logging.getLogger("tritonprobe")


class GpuWatch:
    """Starts and stops GPU times with the adapter; a fault of theirs is counted and leaves the rest alone."""

    def __init__(
        self,
        ledger: Ledger,
        fault: Callable[[str], None],
        windows: LaunchWindows,
        is_ready: Callable[[], bool],
        graphs_too: bool,
    ) -> None:
        from tritonprobe.gpu.times import GpuTimes, Program

        self._fault = fault
        program = Program(unmeasurable, foreign, is_ready, self._has_graphs, graphs_too)
        self.times: GpuTimes = GpuTimes(ledger, fault, windows, program)
        times = self.times
        self._captures = Captures(windows, times.begins, times.ends, times.captured, times.not_captured, fault)
        self._profilers = Profilers(self.times.begins, self.times.ends, fault)

    def _has_graphs(self) -> bool:
        return self._captures.are_there_graphs()

    def install(self) -> None:
        try:
            self._captures.install()
            self._profilers.install()
            self.times.start()
        except Exception:
            self._fault("gpu")
            self.remove()

    def remove(self) -> list[str]:
        """Takes the patches back; returns the names that somebody else had wrapped."""
        self.times.stop()
        return [*self._captures.remove(), *self._profilers.remove()]


def unmeasurable() -> str | None:
    """Why there is no GPU time on the active device, if so."""
    from triton import knobs

    if device.is_compile_only():
        return "launches do nothing on the compile-only device"
    if knobs.runtime.interpret:
        return "the interpreter runs kernels on the CPU"
    return None


def foreign(name: str) -> str:
    """What a kernel that was not launched through us is called: Inductor's go by their canonical names everywhere."""
    return canonical_name(name) if name.startswith("triton_") else name
