"""CUPTI's kernel records through ctypes: switches, flushes, and a self-test. The only module that calls libcupti.

One `Cupti` a process, made by `the_cupti` and never freed, for CUPTI keeps the addresses of its callbacks, which are C
(`callbacks.c`): no Python runs inside CUPTI. Buffers are bounded; beyond them CUPTI drops records and says how many.

The self-test launches a kernel of our own and compares what comes back with what is known: which kernel, how often,
which grids, when. It learns the records' size from the first two of them. Whatever does not fit is a `CuptiError`.
"""

from __future__ import annotations

import ctypes as c
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonprobe import native
from tritonprobe.gpu.driver import MARK, Driver, DriverError, Marker
from tritonprobe.gpu.reading import KIND
from tritonprobe.gpu.records import RecordError, Records, grid_code, read

log = logging.getLogger("tritonprobe")

CALLBACKS_SOURCE = Path(__file__).with_name("callbacks.c")
BUFFER = 512 << 10
MOST_BUFFERS = 128
"""Bytes of a buffer, and how many there may be: 64 MiB at most, and that only where many threads launch at once."""
FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_DRIVER_API, _DRIVER_GET_VERSION = 1, 2  # CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion
_MULTIPLE_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_TEST_GRIDS = (3, 1, 2, 5)
_TEST_SECONDS = 2.0
_SLACK_NS = 10_000_000  # the GPU's clock against the host's
_CLOSE_NS = 10_000  # two clocks that are read within so much are read together
_READINGS = 4  # how often that is tried: each may wait for the interpreter's lock, on a thread that launches


class CuptiError(RuntimeError):
    """Why CUPTI cannot be used; the message is one line."""


class Cupti:
    """CUPTI as this process has it. Raises CuptiError."""

    def __init__(self, path: str) -> None:
        self.path = path
        callbacks: Any = native.load(CALLBACKS_SOURCE)
        if callbacks is None:
            raise CuptiError("the callbacks cannot be compiled: there is no C compiler, or no header of Python's")
        try:
            self._lib = lib = c.CDLL(path)
            for name, arguments in (
                ("cuptiGetVersion", (c.POINTER(c.c_uint32),)),
                ("cuptiGetResultString", (c.c_int, c.POINTER(c.c_char_p))),
                ("cuptiGetTimestamp", (c.POINTER(c.c_uint64),)),
                ("cuptiActivityRegisterCallbacks", (c.c_void_p, c.c_void_p)),
                ("cuptiActivityEnable", (c.c_int,)),
                ("cuptiActivityDisable", (c.c_int,)),
                ("cuptiActivityFlushAll", (c.c_uint32,)),
                ("cuptiActivityGetNumDroppedRecords", (c.c_void_p, c.c_uint32, c.POINTER(c.c_size_t))),
                (
                    "cuptiActivityGetNextRecord",
                    (c.c_void_p, c.c_size_t, c.POINTER(c.c_void_p)),
                ),
                ("cuptiSubscribe", (c.POINTER(c.c_void_p), c.c_void_p, c.c_void_p)),
                ("cuptiUnsubscribe", (c.c_void_p,)),
                ("cuptiEnableCallback", (c.c_uint32, c.c_void_p, c.c_int, c.c_uint32)),
                ("cuptiFinalize", ()),
            ):
                function = getattr(lib, name)
                function.argtypes, function.restype = arguments, c.c_int
        except (OSError, AttributeError) as error:
            raise CuptiError(f"{path}: {error}") from None
        version = c.c_uint32()
        self._check("cuptiGetVersion", c.byref(version))
        self.version = version.value
        self.use = threading.RLock()
        """Whoever switches records on holds it until it has fetched them."""
        self.attached = False  # with our callbacks, unless another profiler came since
        self.left = False  # once at least
        self.stride = 0  # until the self-test has learnt it
        callbacks.set_up(BUFFER, MOST_BUFFERS)
        self._callbacks = callbacks
        self._declined = 0
        self._began = (0, 0)  # both clocks when records were last switched on

    def attach(self) -> None:
        """Brings CUPTI into the process, with our callbacks in the place of anybody's.

        Launches are dearer by a twentieth from its first record on until it leaves. But where there are CUDA graphs it
        must neither leave nor, once it has left, come back: after the second time a replay may fail ("unspecified
        launch failure", CUDA 13.0).
        """
        self._check("cuptiActivityRegisterCallbacks", self._callbacks.REQUESTED, self._callbacks.COMPLETED)
        self.attached = True

    def leave(self, driver: Driver) -> None:
        """Takes CUPTI out of the process, so that nothing pays for it any more; not while buffers are outstanding."""
        if self.attached and not self.outstanding and self._detach(driver):
            self.attached, self.left = False, True

    def enable(self) -> None:
        self._began = self._both_clocks()
        self._check("cuptiActivityEnable", KIND)

    def disable(self) -> None:
        self._check("cuptiActivityDisable", KIND)

    def flush(self, flag: int = 0) -> None:
        """Has CUPTI give back the buffers whose records are complete; with FORCED, all of them."""
        self._check("cuptiActivityFlushAll", flag)

    def _detach(self, driver: Driver) -> bool:
        """False: another profiler has subscribed to CUPTI."""
        handle = c.c_void_p()
        code = self._lib.cuptiSubscribe(c.byref(handle), self._callbacks.LEAVE, None)
        if code == _MULTIPLE_SUBSCRIBERS:
            return False
        if code:
            raise CuptiError(f"cuptiSubscribe: {self._text(code)}")
        try:
            self._callbacks.leave_with(c.cast(self._lib.cuptiFinalize, c.c_void_p).value)
            self._check("cuptiEnableCallback", 1, handle, _DRIVER_API, _DRIVER_GET_VERSION)
            _ = driver.version  # the call to leave from
        finally:
            answer = self._callbacks.left()
            if answer:  # else we would pass for another profiler from now on
                self._lib.cuptiUnsubscribe(handle)
        if answer:
            raise CuptiError(f"cuptiFinalize: {'never called' if answer < 0 else self._text(answer)}")
        return True

    def _both_clocks(self) -> tuple[int, int]:
        """Now: CUPTI's clock, which is that of the records, and time.perf_counter_ns.

        The call gives the interpreter's lock away, and may have it back tens of milliseconds later where other threads
        compute: then the clocks are read again, and of several readings the closest counts.
        """
        found = c.c_uint64()
        readings: list[tuple[int, int, int]] = []  # how long it took, theirs, ours
        while len(readings) < _READINGS:
            before = time.perf_counter_ns()
            self._check("cuptiGetTimestamp", c.byref(found))
            after = time.perf_counter_ns()
            readings.append((after - before, found.value, (before + after) // 2))
            if after - before <= _CLOSE_NS:
                break
        _, theirs, ours = min(readings)
        return theirs, ours

    def is_subscribed(self) -> bool:
        """Whether another profiler of this process subscribed to CUPTI."""
        handle = c.c_void_p()
        code = self._lib.cuptiSubscribe(c.byref(handle), self._callbacks.LEAVE, None)
        if code == _MULTIPLE_SUBSCRIBERS:
            return True
        if code == 0:
            self._lib.cuptiUnsubscribe(handle)
        return False

    def dropped(self) -> int:
        """Records lost since the last call, for want of buffers."""
        count = c.c_size_t()
        self._check("cuptiActivityGetNumDroppedRecords", None, 0, c.byref(count))
        before, self._declined = self._declined, self._callbacks.counts()[2]
        return count.value + self._declined - before

    @property
    def outstanding(self) -> int:
        """Buffers that CUPTI still holds."""
        held: int = self._callbacks.counts()[1]
        return held

    def records(self) -> Records:
        """The records given back so far, which are then gone, with the times of time.perf_counter_ns.

        Raises RecordError, and they are gone all the same. torch's profiler leaves CUPTI a clock of its own that counts
        the processor's cycles: so its rate is measured from `enable` until now.
        """
        with self._taken() as chunks:
            found = read(chunks, self.stride)
        found.move_to(self._began, self._both_clocks())
        return found

    def discard(self) -> None:
        with self._taken():
            pass

    @contextmanager
    def _taken(self) -> Iterator[list[npt.NDArray[np.uint8]]]:
        """The bytes given back so far, as they lie there; after the block they are CUPTI's again."""
        try:
            yield [np.frombuffer(chunk, np.uint8) for chunk in self._callbacks.take()]
        finally:
            self._callbacks.put_back()

    def collect(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> bool:
        """Flushes until every buffer is back or `enough()`; after `seconds` takes what there is. True if all is."""
        pause, deadline = 0.0005, time.monotonic() + seconds
        while True:
            self.flush()
            if not self.outstanding or enough():
                return True
            if time.monotonic() > deadline:
                self.flush(FORCED)
                return not self.outstanding
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def test(self, driver: Driver, device: int) -> Marker:
        """The self-test; the marker kernel goes on to whoever needs it. Raises CuptiError."""
        try:
            marker = Marker(driver, device)
        except DriverError as error:
            raise CuptiError(f"no self-test: {error}") from None
        try:
            self._test(marker)
        except (CuptiError, DriverError, RecordError) as error:
            marker.close()
            raise CuptiError(f"self-test: {error}") from None
        return marker

    def _test(self, marker: Marker) -> None:
        with self.use:
            self.attach()
            marker.launch(1)
            marker.finish()
            self.flush()
            self.discard()
            began = time.perf_counter_ns()
            self.enable()
            try:
                for blocks in _TEST_GRIDS:
                    marker.launch(blocks)
            finally:
                self.disable()
            marker.finish()
            ended = time.perf_counter_ns()
            whole = self.collect(_TEST_SECONDS)
            with self._taken() as chunks:
                raw = [chunk.copy() for chunk in chunks]
            now = self._both_clocks()
        if not raw:
            raise CuptiError(
                f"{len(_TEST_GRIDS)} launches left no record "
                f"({self._callbacks.counts()[0]} buffers lent, all back: {whole})"
            )
        self.stride = self._learn(raw)
        found = read(raw, self.stride)
        found.move_to(self._began, now)
        mine = [i for i, name in enumerate(found.name.tolist()) if text_at(name) == MARK]
        grids = found.grid[mine].tolist()
        if grids != [grid_code(blocks, 1, 1) for blocks in _TEST_GRIDS]:
            raise CuptiError(f"launched grids {_TEST_GRIDS}, and {len(found)} records show {[g >> 32 for g in grids]}")
        start, end = found.start[mine], found.end[mine]
        if not (np.all(end >= start) and np.all(found.graph[mine] == 0)):
            raise CuptiError(f"records without times: {start.tolist()}, {end.tolist()}")
        if not began - _SLACK_NS < int(start.min()) <= int(end.max()) < ended + _SLACK_NS:
            raise CuptiError(f"records lie at {start.tolist()}, and it was {began} to {ended}")
        if np.any(np.diff(found.correlation[mine]) == 0):  # they may begin again, past the last one
            raise CuptiError("launches have the same correlation id")

    def _learn(self, raw: list[npt.NDArray[np.uint8]]) -> int:
        """The size of a record, from where CUPTI says that the first two of a buffer begin.

        Of the largest one: what another thread launched meanwhile may be alone in a buffer of its own.
        """
        aligned = np.frombuffer(bytearray(max(raw, key=len).tobytes()), np.uint8)
        places: list[int] = []
        record = c.c_void_p()
        while len(places) < 2 and not self._lib.cuptiActivityGetNextRecord(
            aligned.ctypes.data, len(aligned), c.byref(record)
        ):
            places.append(record.value or 0)
        if len(places) < 2:
            raise CuptiError(f"{len(aligned)} bytes hold {len(places)} record, expected {len(_TEST_GRIDS)}")
        return places[1] - places[0]

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise CuptiError(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        text = c.c_char_p()
        self._lib.cuptiGetResultString(code, c.byref(text))
        return f"{(text.value or b'unknown').decode()} ({code})"


def text_at(address: int) -> str:
    """The C string there: a kernel's name, which CUPTI keeps."""
    return c.string_at(address).decode(errors="replace") if address else ""


def libraries() -> Iterator[str]:
    """Where CUPTI may be: the copy that is loaded (torch's profiler has its own), torch's wheels, Triton's copy."""
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/libcupti.so" in line:
                yield line[line.index("/") :]
                return
    except OSError:
        log.debug("tritonprobe: the loaded libraries cannot be listed", exc_info=True)
    for entry in sys.path:
        for pattern in (
            "nvidia/cu*/lib/libcupti.so.*",
            "nvidia/cuda_cupti/lib/libcupti.so.*",
            "triton/backends/nvidia/lib/cupti/libcupti.so.*",
        ):
            yield from map(str, sorted(Path(entry or ".").glob(pattern), key=lambda found: len(found.name)))


_made: Cupti | None = None
_lock = threading.Lock()


def the_cupti() -> Cupti:
    """This process's CUPTI, loaded at first use. Raises CuptiError if there is none that can be loaded."""
    global _made
    with _lock:
        if _made is None:
            tried: list[str] = []
            for path in libraries():
                try:
                    _made = Cupti(path)
                    break
                except CuptiError as error:
                    tried.append(str(error))
            if _made is None:
                raise CuptiError(tried[0] if tried else "no libcupti in torch's or Triton's packages")
        return _made
