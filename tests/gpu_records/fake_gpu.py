"""A GPU that never was: launchers that leave kernel records as CUPTI writes them, byte for byte, on a CPU.

`FakeCupti` has what `Window` asks of `Cupti`, and knows the truth: which launch each record is of.
"""

from __future__ import annotations

import ctypes
import threading
import time
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonprobe.gpu.analysis import Found
from tritonprobe.gpu.reading import KIND
from tritonprobe.gpu.records import Records, read
from tritonprobe.gpu.spans import tally
from tritonprobe.seen import Label

# CUPTI's cupti_activity.h: CUpti_ActivityKernel9 (CUDA 12, 208 bytes) and CUpti_ActivityKernel10 (CUDA 13.0, 216).
FIELDS: dict[str, tuple[str, int]] = {
    "kind": ("<u4", 0), "registers": ("<u2", 6), "start": ("<u8", 16), "end": ("<u8", 24), "device": ("<u4", 40),
    "context": ("<u4", 44), "stream": ("<u4", 48), "x": ("<i4", 52), "y": ("<i4", 56), "z": ("<i4", 60),
    "block": ("<i4", 64), "correlation": ("<u4", 92), "name": ("<u8", 104), "node": ("<u8", 144), "graph": ("<u4", 156),
}  # fmt: skip
CUDA_12 = 208  # of the libcupti that Triton 3.6 to 3.9 have


def kernel_dtype(stride: int) -> np.dtype[Any]:
    formats, offsets = zip(*FIELDS.values(), strict=True)
    return np.dtype({"names": list(FIELDS), "formats": formats, "offsets": offsets, "itemsize": stride})


def raw(rows: list[dict[str, int]], stride: int = 216) -> npt.NDArray[np.uint8]:
    """Records as bytes; what a row does not say is that of a kernel of one block."""
    found = np.zeros(len(rows), kernel_dtype(stride))
    for place, row in enumerate(rows):
        for field, value in {"kind": KIND, "x": 1, "y": 1, "z": 1, "stream": 7, **row}.items():
            found[field][place] = value
    return found.view(np.uint8)


class Names:
    """C strings at addresses, as CUPTI keeps its kernels' names."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._freed: list[Any] = []  # kept all the same, so that who reads them reads what is written there

    def address(self, name: str) -> int:
        buffer = self._kept.setdefault(name, ctypes.create_string_buffer(name.encode()))
        return ctypes.addressof(buffer)

    def free(self) -> None:
        for buffer in self._kept.values():
            buffer.value = b"?"[: len(buffer) - 1]
            self._freed.append(buffer)
        self._kept.clear()


class FakeCupti:
    """Records while it is switched on; correlation ids rise in the order in which launches arrive."""

    version, stride = 130000, 216

    def __init__(self) -> None:
        self.use = threading.RLock()
        self.names = Names()
        self.rows: list[dict[str, int]] = []
        self.on = False
        self.outstanding = 0
        self.attached = self.left = False
        self.missing = 0
        self.switches: list[str] = []
        self.truth: list[Any] = []  # of each record, in order
        self._correlation = count(1)
        self._lock = threading.Lock()

    def launched(self, name: str, grid: tuple[int, int, int], what: object = None, **more: int) -> None:
        """What the driver does with a launch."""
        with self._lock:
            correlation = next(self._correlation)
            if self.on:
                x, y, z = grid
                now = time.perf_counter_ns()
                row = {"name": self.names.address(name), "x": x, "y": y, "z": z, "correlation": correlation}
                self.rows.append({**row, "start": now, "end": now + 1000, **more})
                self.truth.append(what)

    def enable(self) -> None:
        self.on = True
        self.switches.append("on")

    def disable(self) -> None:
        self.on = False
        self.switches.append("off")

    def flush(self, flag: int = 0) -> None:
        """Everything is here already."""

    def discard(self) -> None:
        self.rows.clear()
        self.truth.clear()

    def dropped(self) -> int:
        missing, self.missing = self.missing, 0
        return missing

    def collect(self, seconds: float, enough: Any = None) -> bool:
        return True

    def attach(self) -> None:
        self.switches.append("attach")
        self.attached = True

    def leave(self, driver: object) -> None:
        if self.attached:
            self.switches.append("leave")
            self.attached, self.left = False, True
            self.names.free()

    def is_subscribed(self) -> bool:
        return False

    def records(self) -> Records:
        rows, self.rows = self.rows, []
        return read([raw(rows, self.stride)], self.stride)


def sums(found: Found) -> list[tuple[Label, int, int]]:
    """Label, records, nanoseconds."""
    cells, totals = tally(found.spans, np.empty(0))
    return [(label, n, ns) for label, (n,), ns in zip(found.labels, cells.tolist(), totals.tolist(), strict=True) if n]


class FakeLauncher:
    """In the place of Triton's launcher: tells `cupti` of each launch that would reach a GPU, like the real one."""

    def __init__(self, cupti: FakeCupti, name: str, ctas: int = 1, slow: float = 0.0) -> None:
        self.cupti, self.name, self.ctas, self.slow = cupti, name, ctas, slow

    def __call__(self, x: int, y: int, z: int, *rest: Any) -> None:
        if self.slow:
            time.sleep(self.slow)
        if x * y * z > 0:
            self.cupti.launched(self.name, (x * self.ctas, y, z), rest[6:])  # what is left are the kernel's arguments
