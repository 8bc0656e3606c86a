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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tritonprobe.gpu.budget import Budget
from tritonprobe.gpu.clock import MAX_CAPTURES, MAX_NODES, Clock, Looked, NeverAgain, NotYet
from tritonprobe.ledger import schema
from tritonprobe.ledger.store import Ledger
from tritonprobe.model import GpuLaunches, GpuSample
from tritonprobe.seen import FIRST_CAPTURE, Label, LaunchSource, TracedStep

log = logging.getLogger("tritonprobe")

WAITING_SECONDS = 1.0
"""Between two looks whether there is a CUDA context yet, or whether another profiler is gone."""
PATIENCE_SECONDS = 60.0
"""After a program made its CUDA context, unless it says earlier that it is ready: while it starts it captures graphs,
and CUPTI must not have left before."""
STRIKES = 3
"""Windows in a row that failed, after which no more are opened."""
FORK = "fork"
LEAVING_SECONDS = 0.5
"""A fork, the first capture of a graph, and the end, wait so long at most for a window that they have just ended."""
_DROPPED = {
    "bound": "more were captured than are kept",
    "mixed": "two were captured at the same time",
    "large": "its capture had more launches than are kept",
}
_FOREIGN_PROFILERS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE")


@dataclass(frozen=True, slots=True)
class Program:
    """What the adapter knows of the program."""

    unmeasurable: Callable[[], str | None]
    """Why there is no GPU time to be had on this device, if so."""
    rename: Callable[[str], str]
    """What a foreign kernel of that name is to be counted as."""
    is_ready: Callable[[], bool]
    has_graphs: Callable[[], bool]
    """Whether there are CUDA graphs, or were."""
    graphs_too: bool
    """Whether to measure where there are CUDA graphs, too: CUPTI then stays, which costs their replays something."""


class GpuTimes:
    def __init__(self, ledger: Ledger, fault: Callable[[str], None], source: LaunchSource, program: Program) -> None:
        self._ledger = ledger
        self._fault = fault
        self._source = source
        self._program = program
        self.budget = Budget()
        self._clock: Clock | None = None
        self._busy_with: list[str] = []  # captures under way, profilers at work
        self._turn_lock = threading.RLock()  # one window at a time
        self._lock = threading.RLock()
        self._stop: threading.Event | None = None
        self._strikes = 0
        self._said: set[str] = set()
        self._replays = False  # of graphs that nobody told us of
        self._context_since: float | None = None
        self._info: tuple[str, str] | None = None
        self._traced: tuple[Callable[[int, int], Sequence[TracedStep]], Callable[[GpuLaunches], None]] | None = None
        self.captures: list[tuple[list[tuple[tuple[str, int], Label]], Callable[[], bool]]] = []
        self._nodes = 0  # of all these
        _living.add(self)

    @property
    def info(self) -> tuple[str, str]:
        """How GPU time is measured, and why so."""
        return self._info or ("none", "not started")

    @property
    def is_on(self) -> bool:
        return self._stop is not None

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
        if clock is None:
            return
        # The window's own thread takes CUPTI out. At the program's end it must be through: the interpreter stops it
        # wherever it is, and CUPTI may wait for it.
        if self._turn_lock.acquire(timeout=LEAVING_SECONDS):
            self._turn_lock.release()
        clock.rest()

    def begins(self, what: str) -> None:
        """A capture or another profiler begins: records are off when this returns, and stay off until it `ends`."""
        self._busy_with.append(what)
        self._cut()
        if what in (FORK, FIRST_CAPTURE) and self._turn_lock.acquire(timeout=LEAVING_SECONDS):
            self._turn_lock.release()  # CUPTI has left, unless it may not

    def ends(self, what: str) -> None:
        if what in self._busy_with:
            self._busy_with.remove(what)

    def is_busy(self) -> bool:
        return bool(self._busy_with)

    def may_cupti_leave(self) -> bool:
        alone = all(what in (FORK, FIRST_CAPTURE) for what in self._busy_with)
        return alone and not self._program.graphs_too and not self._replays and not self._program.has_graphs()

    def refuses(self, back: bool) -> str | None:
        if self._program.graphs_too and not back:
            return None
        if not (self._replays or self._program.has_graphs()):
            return None
        if self._program.graphs_too:
            return "this process has CUDA graphs, and CUPTI has left it once: a replay might fail (docs/gpu-times.md)"
        return "this process has CUDA graphs; TRITONPROBE_GPU_WINDOWS=graphs measures them (docs/gpu-times.md)"

    def saw_replays(self) -> None:
        self._replays = True

    def attend(self, steps: Callable[[int, int], Sequence[TracedStep]], publish: Callable[[GpuLaunches], None]) -> None:
        """From now on launches in steps of traced requests are told to `publish`; ``steps(since, until)`` has these."""
        self._traced = steps, publish

    def traced_steps(self, since: int, until: int) -> Sequence[TracedStep]:
        return () if self._traced is None else self._traced[0](since, until)

    def tell(self, launches: GpuLaunches) -> None:
        if self._traced is not None:
            self._traced[1](launches)

    def rename(self, name: str) -> str:
        return self._program.rename(name)

    def captured(self, launches: list[tuple[tuple[str, int], Label]], alive: Callable[[], bool]) -> None:
        """A graph was captured, with these launches in it: function, grid and label of each."""
        if not self._program.graphs_too or not launches:
            return  # nothing is looked at any more, or nothing is to be told
        gone = 0
        with self._lock:
            self.captures.append((launches, alive))
            self._nodes += len(launches)
            if self._are_too_many():
                self.captures = [each for each in self.captures if each[1]()]
                self._nodes = sum(len(each) for each, _ in self.captures)
            while self._are_too_many() and len(self.captures) > 1:
                self._nodes -= len(self.captures.pop(0)[0])
                gone += 1
        self._captures_dropped("bound", gone)

    def _are_too_many(self) -> bool:
        return len(self.captures) > MAX_CAPTURES or self._nodes > MAX_NODES

    def not_captured(self, why: str) -> None:
        """A graph was captured, and nobody can say what was launched in it."""
        if self._program.graphs_too:
            self._captures_dropped(why, 1)

    def _captures_dropped(self, why: str, count: int) -> None:
        if count:
            self._ledger.add(schema.CAPTURES_DROPPED, (why,), count)
            if why not in self._said:
                self._said.add(why)
                log.warning(
                    "tritonprobe: a CUDA graph's GPU time will not be told by bucket: %s (said once, counted in "
                    "gpu_captures_dropped_total)",
                    _DROPPED[why],
                )

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
                        if clock is not None:  # whoever stopped us may not have seen it yet
                            clock.rest()
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
        why = self._program.unmeasurable() or foreign_profiler(os.environ)
        if why is not None:
            self._off(why)
            return None
        from tritonprobe.gpu.cupti_clock import make_clock

        started = time.thread_time()
        try:
            settled = self._is_settled if patient else _always
            self._clock = make_clock(self._source, self._ledger, self, self._fault, settled)
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

    def _is_settled(self) -> bool:
        """Whether the program's start is over. Asked once it has a CUDA context."""
        if self._context_since is None:
            self._context_since = time.monotonic()
        return self._program.is_ready() or time.monotonic() - self._context_since >= PATIENCE_SECONDS

    def _look(self, clock: Clock, seconds: float, wait: Callable[[float], object]) -> tuple[GpuSample, ...]:
        """One window. Whatever it meets ends here."""
        started = time.thread_time()
        with self._lock:
            fresh, self.captures, self._nodes = self.captures, [], 0
        try:
            for launches, alive in fresh:
                self._captures_dropped("bound", clock.captured(launches, alive))
            found = clock.look(seconds, wait)
            why = f"the last window was {found.outcome}"
        except NeverAgain as end:
            self._off(str(end))
            return ()
        except Exception as error:
            found = Looked("misread" if isinstance(error, ValueError) else "failed")
            why = str(error)
            log.debug("tritonprobe: a window failed", exc_info=True)
            clock.rest()
        own = time.thread_time() - started + found.switching
        cost = self.budget.spent(own, found.launches, found.replayed)
        self._ledger.add(schema.GPU_WINDOWS, (found.outcome,))
        self._ledger.add(schema.SELF_SECONDS, ("gpu",), cost)
        self._strikes = self._strikes + 1 if found.outcome in ("failed", "misread", "taken") else 0
        if self._strikes >= STRIKES:
            self._off("another profiler holds CUPTI" if found.outcome == "taken" else why)
        return found.samples

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
        self.captures, self._nodes = [], 0
        if self._info is not None:  # without a line in the log: a server may fork for each request
            self._info = ("none", "forked")
            self._ledger.set(schema.GPU_TIMING, self._info, 1.0)


def _always() -> bool:
    return True


def foreign_profiler(environ: Mapping[str, str]) -> str | None:
    """Why a profiler that started this program keeps us away, if one did."""
    for name in _FOREIGN_PROFILERS:
        if environ.get(name):
            return f"{name} is set: another profiler runs this program"
    return None


_living: weakref.WeakSet[GpuTimes] = weakref.WeakSet()


def is_anything_under_way() -> bool:
    """Whether a capture, another profiler or a fork is, as far as anybody here watches."""
    return any(times.is_busy() for times in list(_living))


def may_cupti_leave() -> bool:
    """Whether CUPTI may be taken out of the process now, for all that windows know and want, if they are on."""
    return all(times.may_cupti_leave() for times in list(_living) if times.is_on)


def _before_fork() -> None:
    # A buffer that CUPTI holds would be given back in the child, too, and its threads would be missing there: so the
    # window that is open ends, and CUPTI leaves with it where it may.
    for times in list(_living):
        times.begins(FORK)


def _after_fork_in_parent() -> None:
    for times in list(_living):
        times.ends(FORK)


def _after_fork() -> None:
    for times in list(_living):
        times.forked()


def _at_exit() -> None:
    for times in list(_living):
        try:
            times.stop()
        except Exception:
            log.debug("tritonprobe: GPU times did not stop", exc_info=True)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
atexit.register(_at_exit)
