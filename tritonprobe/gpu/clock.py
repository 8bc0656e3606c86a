"""A clock for GPU time: records by CUPTI, or events where there is no CUPTI. What `times` asks, whatever the method.

Imported once there is something to measure: it needs numpy.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from tritonprobe.gpu.analysis import analyse
from tritonprobe.gpu.attribution import Key
from tritonprobe.gpu.cupti import FORCED, Cupti, CuptiError, text_at, the_cupti
from tritonprobe.gpu.driver import Driver, Marker
from tritonprobe.gpu.graphs import Capture, Graphs
from tritonprobe.gpu.publish import Published
from tritonprobe.gpu.window import Window
from tritonprobe.ledger.store import Ledger
from tritonprobe.model import GpuSample, WindowOutcome
from tritonprobe.seen import Label, LaunchSource

log = logging.getLogger("tritonprobe")

Looked = tuple[WindowOutcome, tuple[GpuSample, ...], int, int]
"""What became of a window, its samples, the launches it saw and the replayed kernels."""


class NotYet(Exception):  # noqa: N818  # it is no error
    """There is nothing to measure yet; the message says what is missing."""


class Clock(Protocol):
    method: str
    why: str

    def look(self, seconds: float, wait: Callable[[float], object]) -> Looked:
        """Holds a window open and counts what it saw. May raise CuptiError, DriverError and RecordError."""

    def cut(self) -> None:
        """Ends the window that is open, for nothing; records are off when this returns."""

    def lost(self) -> None:
        """Another profiler has been at work: what was set up has to be set up again."""

    def rest(self) -> None:
        """Nothing is on and nothing outstanding."""

    def captured(self, launches: list[tuple[Key, Label]], alive: Callable[[], bool]) -> None:
        """A graph was captured."""


class CuptiClock:
    """Kernel records in windows."""

    method = "cupti"

    def __init__(self, cupti: Cupti, source: LaunchSource, published: Published, rename: Callable[[str], str]) -> None:
        self._cupti = cupti
        self._source = source
        self._published = published
        self._rename = rename
        self._graphs = Graphs()
        self._window: Window | None = None
        self._ours = True  # the callbacks registered with CUPTI
        self._relaxed = threading.local()
        self.why = f"CUPTI {cupti.version}, records of {cupti.stride} bytes, self-test passed"

    def look(self, seconds: float, wait: Callable[[float], object]) -> Looked:
        if not getattr(self._relaxed, "done", False):
            Driver().relax()
            self._relaxed.done = True
        cupti = self._cupti
        with cupti.use:
            if not self._ours:
                cupti.register()
                self._ours = True
            window = self._window = Window(cupti, self._source)
            try:
                taken = window.run(seconds, wait)
            finally:
                self._window = None
        if isinstance(taken, str):
            return taken, (), len(window.seen), 0  # type: ignore[return-value]  # Window says outcomes
        found = analyse(taken.seen, taken.records, taken.edges, taken.offset_ns, self._graphs, text_at, self._external)
        if not len(taken.records):
            expected = found.launched.dropped.get("misaligned", 0)
            return ("taken" if expected else "idle"), (), found.seen, 0
        samples = self._published.samples(found, self.method)
        span = max(taken.off_ns, int(taken.records.end.max())) - taken.on_ns
        self._published.window(found, span)
        return "ok", samples, found.seen, found.replayed

    def cut(self) -> None:
        window = self._window
        if window is not None:
            window.cut()

    def lost(self) -> None:
        self._ours = False

    def rest(self) -> None:
        self.cut()
        try:
            if self._cupti.outstanding:
                self._cupti.flush(FORCED)
        except CuptiError:
            log.debug("tritonprobe: CUPTI keeps its buffers", exc_info=True)

    def captured(self, launches: list[tuple[Key, Label]], alive: Callable[[], bool]) -> None:
        self._graphs.captured(Capture(launches, alive))

    def _external(self, name: str) -> str:
        return self._published.external(self._rename(readable(name)))


def make_clock(
    source: LaunchSource, ledger: Ledger, rename: Callable[[str], str], fault: Callable[[str], None]
) -> Clock:
    """The best clock there is. Raises NotYet, or whatever keeps GPU time from being measured at all."""
    torch = sys.modules.get("torch")
    published = Published(ledger)
    if torch is not None and getattr(torch.version, "hip", None):
        return _events("AMD: CUPTI is NVIDIA's", source, published, fault)
    try:
        driver = Driver()
    except OSError:
        raise NotYet("no CUDA driver is loaded") from None
    device = driver.active_device()
    if device is None:
        raise NotYet("the program has made no CUDA context")
    driver.relax()
    try:
        cupti = the_cupti()
        if proton_holds(cupti):
            raise NotYet("Proton has subscribed to CUPTI")
        marker_of(cupti, driver, device)
    except CuptiError as error:
        return _events(str(error), source, published, fault)
    return CuptiClock(cupti, source, published, rename)


def proton_holds(cupti: Cupti) -> bool:
    """Whether Triton's profiler may be at work. torch's stays subscribed to CUPTI when it is done, which is no harm."""
    return "triton.profiler.profile" in sys.modules and cupti.is_subscribed()


def _events(why: str, source: LaunchSource, published: Published, fault: Callable[[str], None]) -> Clock:
    from tritonprobe.gpu.events import EventClock

    return EventClock(why, source, published, fault)


_markers: dict[int, Marker] = {}
_lock = threading.Lock()


def marker_of(cupti: Cupti, driver: Driver, device: int) -> Marker:
    """The marker kernel in a device's primary context, once CUPTI has passed its self-test with it."""
    with _lock:
        if device not in _markers:
            _markers[device] = cupti.test(driver, device)
        return _markers[device]


def readable(name: str) -> str:
    """A function's name as it is written: demangled, without arguments; template arguments are left out."""
    if name.startswith("_Z"):
        try:
            library = ctypes.CDLL("libstdc++.so.6")
            demangle = library["__cxa_demangle"]
            demangle.restype = ctypes.c_void_p
            demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
            status = ctypes.c_int()
            found = demangle(name.encode(), None, None, ctypes.byref(status))
            if found:
                name = ctypes.string_at(found).decode(errors="replace")
                free = ctypes.CDLL(None).free
                free.argtypes = (ctypes.c_void_p,)
                free(found)
        except (OSError, AttributeError):
            log.debug("tritonprobe: %s cannot be demangled", name)
    depth = 0
    kept: list[str] = []
    for letter in name.removeprefix("void "):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and kept:
            break
        elif depth == 0:
            kept.append(letter)
    return "".join(kept).strip() or name
