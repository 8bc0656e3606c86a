"""The clock by CUPTI's records, and which clock this process has. Imported once there is something to measure."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping

from tritonprobe.gpu import launch_log, matching, reading, spans
from tritonprobe.gpu.analysis import analyse
from tritonprobe.gpu.attribution import Key
from tritonprobe.gpu.clock import Clock, Looked, NeverAgain, NotYet, ProgramView
from tritonprobe.gpu.cupti import FORCED, Cupti, CuptiError, text_at, the_cupti
from tritonprobe.gpu.driver import Driver, Marker
from tritonprobe.gpu.graphs import Capture, Graphs
from tritonprobe.gpu.names import readable
from tritonprobe.gpu.publish import Published
from tritonprobe.gpu.traced import choose
from tritonprobe.gpu.window import Taken, Window
from tritonprobe.ledger.store import Ledger
from tritonprobe.seen import Label, LaunchSource

log = logging.getLogger("tritonprobe")


class CuptiClock:
    """Kernel records in windows. CUPTI is in the process while one is open and, where it may leave, only then."""

    method = "cupti"

    def __init__(
        self, cupti: Cupti, driver: Driver, source: LaunchSource, published: Published, program: ProgramView
    ) -> None:
        self._cupti = cupti
        self._driver = driver
        self._source = source
        self._published = published
        self._program = program
        self._graphs = Graphs()
        self._window: Window | None = None
        self._switching = threading.RLock()  # while CUPTI comes or goes; a capture waits for it
        self._relaxed = threading.local()
        self.why = f"CUPTI {cupti.version}, records of {cupti.stride} bytes, self-test passed"

    def look(self, seconds: float, wait: Callable[[float], object]) -> Looked:
        if not getattr(self._relaxed, "done", False):
            self._driver.relax()
            self._relaxed.done = True
        with self._cupti.use:
            if wait(0.0):  # windows were stopped while another had CUPTI
                return Looked("cut")
            began = time.perf_counter()
            why = self._program.refuses(self._cupti.left and not self._cupti.attached)
            if why is not None:
                raise NeverAgain(why)
            with self._switching:
                if self._program.is_busy():
                    return Looked("cut")
                self._cupti.attach()
            window = self._window = Window(self._cupti, self._source)
            if self._program.is_busy():
                window.cut()
            opened = time.perf_counter()
            names: dict[int, str] = {}
            try:
                taken = window.run(seconds, wait)
                if not isinstance(taken, str):  # read now: they are in memory of CUPTI's
                    names = {address: text_at(address) for address in set(taken.records.classes.name.tolist())}
            finally:
                self._window = None
                closed = time.perf_counter()
                self._leave()
            switching = opened - began + time.perf_counter() - closed
        if isinstance(taken, str):
            return Looked(taken, launches=len(window.log), switching=switching)
        return self.consume(taken, names, switching)

    def consume(self, taken: Taken, names: Mapping[int, str], switching: float) -> Looked:
        """What a window saw, attributed and counted."""
        steps = self._program.traced_steps(taken.on_ns, taken.off_ns)  # now: the program goes on
        found = analyse(
            taken.launches, taken.records, taken.edges, taken.off_ns, self._graphs, names.__getitem__, self._external,
            bool(steps),
        )  # fmt: skip
        if found.replayed:
            self._program.saw_replays()
        if not len(taken.records):
            if found.launched.dropped.get("misaligned", 0):
                return Looked("taken", launches=found.seen, switching=switching)
            self._published.watched(taken.off_ns - taken.on_ns)
            return Looked("idle", launches=found.seen, switching=switching)
        launches = choose(found, steps, time.time_ns() - time.perf_counter_ns())
        samples = self._published.samples(found, self.method, launches.launches)
        if launches.launches:
            self._program.tell(launches)
        span = max(taken.off_ns, int(taken.records.end.max())) - taken.on_ns
        self._published.window(found, span)
        return Looked("ok", samples, found.seen, found.replayed, switching)

    def cut(self) -> None:
        with self._switching:
            window = self._window
        if window is not None:
            window.cut()

    def rest(self) -> None:
        self.cut()
        if not self._cupti.use.acquire(blocking=False):
            return  # it is another's: a window's that has just been cut, or `bench`'s, and both bring it to rest
        try:
            if self._cupti.outstanding:
                self._cupti.flush(FORCED)
        except CuptiError:
            log.debug("tritonprobe: CUPTI keeps its buffers", exc_info=True)
        finally:
            self._leave()  # the self-test brought it in, and no window may have come since
            self._cupti.use.release()

    def _leave(self) -> None:
        with self._switching:
            if not self._program.may_cupti_leave():
                return
            try:
                self._cupti.leave(self._driver)
            except CuptiError:
                log.debug("tritonprobe: CUPTI stays in the process", exc_info=True)

    def captured(self, launches: list[tuple[Key, Label]], alive: Callable[[], bool]) -> int:
        return self._graphs.captured(Capture(launches, alive))

    def _external(self, name: str) -> str:
        return self._published.external(self._program.rename(readable(name)))


def make_clock(
    source: LaunchSource,
    ledger: Ledger,
    program: ProgramView,
    fault: Callable[[str], None],
    settled: Callable[[], bool],
) -> Clock:
    """The best clock there is. Raises NotYet, or whatever keeps GPU time from being measured at all.

    ``settled()`` is asked once the program has made its CUDA context: whether its start is over.
    """
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
    if not settled():
        raise NotYet("the program is still starting")
    driver.relax()
    for each in (launch_log, matching, reading, spans):
        each.compiled()  # now: a compiler takes longer than a window
    try:
        cupti = the_cupti()
    except CuptiError as error:
        return _events(str(error), source, published, fault)
    if proton_holds(cupti):
        raise NotYet("Proton has subscribed to CUPTI")
    try:
        marker_of(cupti, driver, device)
    except CuptiError as error:
        CuptiClock(cupti, driver, source, published, program).rest()  # the self-test brought CUPTI in
        return _events(str(error), source, published, fault)
    return CuptiClock(cupti, driver, source, published, program)


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
