"""GPU times of a running program: when windows open, what may stop them, and what is said about it.

One thread opens a window every now and then, as `budget` allows, and sleeps in between. It waits until the program has
made a CUDA context, tests CUPTI, and from then on fetches records; if anything is not as it should be it turns itself
off with one line and `gpu_timing_info` says why. Captures and other profilers end a window at once (`cut`), and none
opens until they are done. numpy and CUPTI are loaded on the thread, when there is something to measure.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tritonprobe.gpu.budget import Budget
from tritonprobe.ledger import schema
from tritonprobe.ledger.store import Ledger
from tritonprobe.model import GpuSample, WindowOutcome
from tritonprobe.seen import Label, LaunchSource

if TYPE_CHECKING:
    from tritonprobe.gpu.clock import Clock

log = logging.getLogger("tritonprobe")

WAITING_SECONDS = 1.0
"""Between two looks whether there is a CUDA context yet, or whether another profiler is gone."""
STRIKES = 3
"""Windows in a row that failed, after which no more are opened."""
_FOREIGN_PROFILERS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE")


class GpuTimes:
    def __init__(
        self,
        ledger: Ledger,
        fault: Callable[[str], None],
        source: LaunchSource,
        unmeasurable: Callable[[], str | None],
        rename: Callable[[str], str],
    ) -> None:
        """`unmeasurable()` says why there is no GPU time to be had on this device, if so.

        `rename` gives foreign kernels the name they are to be counted under.
        """
        self._ledger = ledger
        self._fault = fault
        self._source = source
        self._unmeasurable = unmeasurable
        self._rename = rename
        self.budget = Budget()
        self._clock: Clock | None = None
        self._busy_with: list[str] = []  # captures under way, profilers at work
        self._turn_lock = threading.RLock()  # one window at a time
        self._lock = threading.RLock()
        self._stop: threading.Event | None = None
        self._strikes = 0
        self._info: tuple[str, str] | None = None
        self.captures: list[tuple[list[tuple[tuple[str, int], Label]], Callable[[], bool]]] = []
        _living.add(self)

    @property
    def info(self) -> tuple[str, str]:
        """How GPU time is measured, and why so."""
        return self._info or ("none", "not started")

    def start(self) -> None:
        with self._lock:
            if self._stop is not None:
                return
            self._stop = threading.Event()
            threading.Thread(target=self._loop, args=(self._stop,), name="tritonprobe-gpu", daemon=True).start()

    def stop(self) -> None:
        """No window is open when this returns, and none opens any more."""
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()
        self._cut()
        clock = self._clock
        if clock is not None:
            clock.rest()

    def begins(self, what: str) -> None:
        """A capture or another profiler begins: records are off when this returns, and stay off until it `ends`."""
        self._busy_with.append(what)
        self._cut()

    def ends(self, what: str) -> None:
        if what in self._busy_with:
            self._busy_with.remove(what)
        if what not in ("capture",) and self._clock is not None:
            self._clock.lost()

    def captured(self, launches: list[tuple[tuple[str, int], Label]], alive: Callable[[], bool]) -> None:
        """A graph was captured, with these launches in it: function, grid and label of each."""
        with self._lock:
            self.captures.append((launches, alive))
            del self.captures[:-1024]

    def window(self, seconds: float) -> tuple[GpuSample, ...]:
        """One window, now, whatever the budget says. Nothing, if it had to be given up or GPU time cannot be measured.

        The launches to be seen come from other threads.
        """
        with self._turn_lock:
            clock = self._begin(patient=False)
            if clock is None or self._busy_with:
                return ()
            return self._look(clock, seconds, time.sleep)

    def _loop(self, stop: threading.Event) -> None:
        try:
            while not stop.wait(WAITING_SECONDS if self._clock is None else self.budget.pause()):
                with self._turn_lock:
                    clock = self._begin()
                    if self._stop is not stop:
                        return
                    if clock is not None and not self._busy_with:
                        self._look(clock, self.budget.seconds, stop.wait)
        except Exception as error:
            self._fault("gpu")
            self._off(f"{type(error).__name__}: {error}")

    def _begin(self, patient: bool = True) -> Clock | None:
        """The clock, made as soon as it can be; None while it cannot."""
        if self._clock is not None:
            return self._clock
        if self._busy_with:
            return None
        why = self._unmeasurable() or foreign_profiler(os.environ)
        if why is not None:
            self._off(why)
            return None
        from tritonprobe.gpu.clock import NotYet, make_clock

        started = time.thread_time()
        try:
            self._clock = make_clock(self._source, self._ledger, self._rename, self._fault)
        except NotYet as waiting:
            log.debug("tritonprobe: no GPU times yet: %s", waiting)
            if not patient:
                self._say("none", str(waiting))
            return None
        except Exception as error:
            self._off(str(error) or type(error).__name__)
            return None
        self._say(self._clock.method, self._clock.why)
        self._ledger.add(schema.SELF_SECONDS, ("gpu",), time.thread_time() - started)
        return self._clock

    def _look(self, clock: Clock, seconds: float, wait: Callable[[float], object]) -> tuple[GpuSample, ...]:
        """One window. Whatever it meets ends here."""
        started = time.thread_time()
        samples: tuple[GpuSample, ...] = ()
        outcome: WindowOutcome
        with self._lock:
            fresh, self.captures = self.captures, []
        try:
            for launches, alive in fresh:
                clock.captured(launches, alive)
            outcome, samples, launches_seen, replayed = clock.look(seconds, wait)
            why = f"the last window was {outcome}"
        except Exception as error:
            outcome, launches_seen, replayed = ("misread" if isinstance(error, ValueError) else "failed"), 0, 0
            why = str(error)
            log.debug("tritonprobe: a window failed", exc_info=True)
            clock.rest()
        cost = self.budget.spent(time.thread_time() - started, launches_seen, replayed)
        self._ledger.add(schema.GPU_WINDOWS, (outcome,))
        self._ledger.add(schema.SELF_SECONDS, ("gpu",), cost)
        if outcome == "taken":
            clock.lost()
        self._strikes = self._strikes + 1 if outcome in ("failed", "misread", "taken") else 0
        if self._strikes >= STRIKES:
            self._off("another profiler holds CUPTI" if outcome == "taken" else why)
        return samples

    def _cut(self) -> None:
        clock = self._clock
        if clock is not None:
            clock.cut()

    def _off(self, why: str) -> None:
        """For good, with one line."""
        with self._lock:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop.set()
        clock, self._clock = self._clock, None
        if clock is not None:
            clock.rest()
        self._say("none", why)

    def _say(self, method: str, why: str) -> None:
        if (method, why) == self._info:
            return
        log.log(logging.WARNING if method == "none" else logging.INFO, "tritonprobe: GPU times by %s: %s", method, why)
        if self._info is not None:
            self._ledger.set(schema.GPU_TIMING, self._info, None)
        self._info = (method, why)
        self._ledger.set(schema.GPU_TIMING, self._info, 1.0)

    def forked(self) -> None:
        """A child cannot use its parent's CUDA: off."""
        self._lock, self._turn_lock = threading.RLock(), threading.RLock()
        self._stop, self._clock, self._busy_with = None, None, []
        if self._info is not None:
            self._info = None
            self._say("none", "forked")


def foreign_profiler(environ: Mapping[str, str]) -> str | None:
    """Why a profiler that started this program keeps us away, if one did."""
    for name in _FOREIGN_PROFILERS:
        if environ.get(name):
            return f"{name} is set: another profiler runs this program"
    return None


_living: weakref.WeakSet[GpuTimes] = weakref.WeakSet()
_process = os.getpid()


def _before_fork() -> None:
    # A buffer that CUPTI holds would be given back in the child, too.
    for times in list(_living):
        times._cut()


def _after_fork() -> None:
    global _process
    _process = os.getpid()
    for times in list(_living):
        times.forked()


def _at_exit() -> None:
    for times in list(_living):
        try:
            times.stop()
        except Exception:
            log.debug("tritonprobe: GPU times did not stop", exc_info=True)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
atexit.register(_at_exit)
