"""The one live probe of a process: what every room shares, wired together.

``current()`` makes it at first use. Nothing here knows Triton beyond handing things to the adapter.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tritonprobe._version import __version__
from tritonprobe.bus import Bus
from tritonprobe.cold_calls import ColdCalls
from tritonprobe.forks import tell_in_child
from tritonprobe.incidents import OpFailures
from tritonprobe.ledger import FileLedger, Ledger, MemoryLedger, open_ledger, signs
from tritonprobe.ledger.record import Recorder
from tritonprobe.ledger.schema import (
    CLIENT_ERRORS,
    ERRORS,
    FIRST_STEPS,
    INFO,
    PREWARM_COVERAGE,
    PREWARMS,
    READY,
)
from tritonprobe.model import ColdCall, Event, LaunchError, PrewarmEnded, RequestCost
from tritonprobe.prewarming import Prewarmed, before_ready
from tritonprobe.prewarming import run as run_census
from tritonprobe.prewarming.keeper import CensusKeeper
from tritonprobe.prewarming.run import Progress, Tuning
from tritonprobe.requests.live import Requests
from tritonprobe.settings import Settings
from tritonprobe.shapes.census import Census
from tritonprobe.tracing import current_trace

if TYPE_CHECKING:
    from tritonprobe.adapter.core import Adapter
    from tritonprobe.adapter.engines import Engines
    from tritonprobe.adapter.outside import Kinds, OutsideCall

log = logging.getLogger("tritonprobe")

COVER = 0.999
"""Of the stall that a census knows, what prewarming saves; the rest is rare shapes that cost as much as the others."""


class Runtime:
    """The probe of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger: Ledger = (
            open_ledger(settings.dir, settings.series_budget) if settings.dir else MemoryLedger(settings.series_budget)
        )
        self.bus = Bus(on_error=self.fault)
        self.cold_calls: deque[ColdCall] = deque(maxlen=settings.history)
        self.requests: deque[RequestCost] = deque(maxlen=settings.history)
        self.ready_unix_ns: int | None = None
        self.off = False  # switched off by `tritonprobe off`: see `switch`
        self.shown = False  # somebody reads its numbers: it must stay
        self._awaits_ready = False
        self._says_ready = False
        self._everything = False  # else only what was probed
        self._kinds: Kinds | None = None
        self._engines: Engines | None = None
        self.ready_because: str | None = None  # why it is ready, or not yet
        self.prewarmed: Prewarmed | None = None
        self._cold = ColdCalls(self)
        self.op_failures = OpFailures()
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self._adapter: Adapter | None = None
        self._info: tuple[str, ...] | None = None
        self.live = Requests(
            self.bus, on_error=self.fault, on_client_error=self._client_error, open_stalls=self._cold.stalls
        )
        self._recorder = Recorder(self.ledger, settings, self.is_ready, self.fault, self.live.waiting)
        self.bus.subscribe(self._recorder, keep=True)
        self.bus.subscribe(self._remember, keep=True)
        tell_in_child(self)
        if settings.engine is not None:
            self.join(settings.engine)

    def join(self, engine: str) -> None:
        """This process serves the requests of `engine`, as others do that count in the same directory."""
        if isinstance(self.ledger, FileLedger) and self.ledger.path is not None:
            if self.live.join(self.ledger.path.parent, engine):
                atexit.register(self.live.leave)
        elif "engine" not in self._said:
            self._said.add("engine")
            log.warning("tritonprobe: the processes of engine %r share no stalls without TRITONPROBE_DIR", engine)

    @property
    def adapter(self) -> Adapter:
        """Made at first use: importing tritonprobe imports no Triton."""
        with self._lock:
            if self._adapter is None:
                from tritonprobe.adapter.core import Adapter

                self._adapter = Adapter(
                    ledger=self.ledger,
                    fault=self.fault,
                    settings=self.settings,
                    opened=self._cold.opened,
                    closed=self._cold.closed,
                    publish=self._launch_error,
                    is_ready=self.is_ready,
                )
                if self._adapter.gpu is not None:
                    self._adapter.gpu.times.attend(self.live.traced_steps, self.bus.publish)
                self.bus.subscribe(self._adapter.census.cold_call, keep=True)
                if isinstance(self.ledger, FileLedger) and self.ledger.path is not None:
                    keeper = CensusKeeper(self.ledger, self.census, self.fault)
                    self.bus.subscribe(keeper.note, keep=True)
            return self._adapter

    @property
    def engines(self) -> Engines:
        """Made at first use, as the adapter is."""
        with self._lock:
            if self._engines is None:
                from tritonprobe.adapter.engines import Engines

                self._engines = Engines(self)
            return self._engines

    @property
    def directory(self) -> Path | None:
        """Where other processes find this one's numbers; None if they are in memory only."""
        return None if self.ledger_file is None else self.ledger_file.parent

    @property
    def ledger_file(self) -> Path | None:
        """The file with this process's numbers; None if they are in memory only."""
        return self.ledger.path if isinstance(self.ledger, FileLedger) else None

    @property
    def rank(self) -> str:
        """The label of cold families."""
        return self._recorder.rank

    @property
    def device(self) -> str:
        """Where launches go: ``cuda:90 (NVIDIA H200)``, ``compile-only:cuda:90``, ``interpreter`` or ``none``."""
        from tritonprobe.adapter.device import describe

        return describe()

    def watch(self, everything: bool = True) -> None:
        """Watches every kernel, and the engine that this process is part of. Raises UnsupportedTriton.

        Not `everything`: what was watched before `unwatch`, be it only what was probed.
        """
        self.off = False
        self._everything = self._everything or everything
        self.adapter.install()
        if self._everything:
            self.adapter.watch_everything()
            self.engines.install()
        else:
            self.adapter.adopt()
        self.describe()

    def watch_later(self, everything: bool = True) -> None:
        """What `watch` is to watch when the switch is on again."""
        self._everything = everything

    def unwatch(self, keep_device: bool = False) -> list[str]:
        """Takes every patch back; returns the names that somebody else had wrapped, and that pass through now.

        The settings' device goes, too, or stays: a program that is switched off runs on.
        """
        left = [] if self._engines is None else self._engines.remove()
        self.adapter.watch_probed_only()
        return [*left, *self.adapter.uninstall(keep_device)]

    def is_in_use(self) -> bool:
        """Whether another runtime in its place would be missed by somebody."""
        to_watch = self._everything or self._adapter is not None  # the first alone: `instrument` while switched off
        return to_watch or self.shown or bool(self.requests) or self.live.is_holding() or self.is_ready()

    def give_up(self) -> None:
        """Another runtime is in its place: else this process would seem to be two, one of which follows no switch."""
        self.live.leave()
        if isinstance(self.ledger, FileLedger):
            self.ledger.close()

    def is_ready(self) -> bool:
        return self.ready_unix_ns is not None

    def census(self) -> Census:
        """What this process launched, how often and how cold, so far."""
        return self.adapter.census.census()

    def prewarm(
        self,
        census: Census,
        *,
        cover: float = COVER,
        budget: float | None = None,
        timeout: float | None = None,
        threads: int | None = None,
        modules: Collection[str] = (),
        expand: bool = False,
        tune: Tuning | None = None,
        progress: Progress | None = None,
    ) -> Prewarmed:
        """Replays a census in this process; see `tritonprobe.prewarm`."""
        if not self.settings.disabled:
            self.adapter.install_once()  # who took us out, or switched us off, does not get us back by this
        start_ns, unix_ns, trace = time.monotonic_ns(), time.time_ns(), current_trace()
        done = self.prewarmed = run_census(
            census,
            self.adapter,
            cover=cover,
            budget=budget,
            timeout=timeout,
            threads=threads,
            modules=modules,
            expand=expand,
            tune=tune,
            progress=progress,
        )
        self.ledger.set(PREWARM_COVERAGE, (), done.coverage)
        self.bus.publish(
            PrewarmEnded(
                start_ns=start_ns,
                end_ns=time.monotonic_ns(),
                unix_ns=unix_ns,
                planned=done.planned,
                replayed=done.replayed,
                there_before=done.there_before,
                skipped=done.variants_skipped,
                coverage=done.coverage,
                stopped=done.stopped,
                trace=trace,
            )
        )
        return done

    def prewarm_as_set(self) -> bool:
        """Replays the settings' census, once, if they name one and kernels run in this process. Never raises.

        Whether there is one to replay here, now or before.
        """
        path, timeout = self.settings.prewarm, self.settings.ready_timeout
        if path is None or self.settings.disabled:
            return False
        if not before_ready.has_device():
            if "no_device" not in self._said:
                self._said.add("no_device")
                self.ledger.add(PREWARMS, ("no_device",))
            return False
        if self.prewarmed is None:
            self.ready_because = f"prewarming from {path}"
            done = before_ready.replay(path, timeout, lambda census: self.prewarm(census, timeout=timeout), self.fault)
            self.prewarmed, self.ready_because = done.result, done.because
            self.ledger.add(PREWARMS, (done.outcome,))
        return True

    def ready(self, unix_ns: int | None = None) -> None:
        """The process takes traffic from now on, or from `unix_ns`. The first call counts.

        Each cold call that ends after it is an incident. With a census in the settings that is replayed first, unless
        another process has said so.
        """
        if self.ready_unix_ns is None:
            path = None if self.settings.disabled else self.settings.prewarm
            if unix_ns is None and not self.prewarm_as_set() and path is not None and self.ready_because is None:
                self.ready_because = before_ready.no_device(path)  # an engine has said why it is ready
            self.ready_unix_ns = time.time_ns() if unix_ns is None else unix_ns
            self.ledger.set(READY, (), self.ready_unix_ns / 1e9)
            self.describe()

    def await_ready(self, awaits: bool) -> None:
        """Whether this process will say itself when it is ready; else it follows the others of its directory."""
        self._awaits_ready = awaits

    def engine_ready(self, why: str) -> bool:
        """As `ready`, for the engine that this process is part of: all processes of its directory hear of it.

        Whether nobody had said so before.
        """
        self.prewarm_as_set()  # each of them by itself, whoever was the first
        self._awaits_ready = False
        self.follow_ready()
        first = self.ready_unix_ns is None
        if first:
            self.ready_because = self.ready_because or why
        self.ready()
        self._says_ready = True
        self.follow_ready()
        return first

    def follow_ready(self) -> None:
        """Takes over that the engine is ready, if another process of the directory has said so.

        Says so in its place once that process is gone, if this one has said it, too: others may yet start.
        """
        directory, ready_ns = self.directory, self.ready_unix_ns
        if directory is None or not (self._says_ready if ready_ns is not None else not self._awaits_ready):
            return
        at = signs.ready_at(directory)
        if ready_ns is None and at is not None:
            self.ready_because = self.ready_because or "another process of its engine is"
            self.ready(at)
        elif ready_ns is not None and at is None:
            with suppress(OSError):  # a full disk; at the next look there may be room
                signs.keep(signs.tell_ready(directory, ready_ns))

    def startup(self) -> str:
        """What cold calls have cost so far in all processes of the directory, as one sentence."""
        from tritonprobe.ledger.startup import cost

        return cost(self.ledger.reading() if isinstance(self.ledger, FileLedger) else self.ledger)

    def set_rank(self, rank: str) -> None:
        """The label of cold families from here on, unless a setting names one."""
        if "TRITONPROBE_RANK" not in os.environ and rank != self.rank:
            self._cold.another_rank(lambda: setattr(self._recorder, "rank", rank))

    def outside(self, name: str, kind: str) -> OutsideCall:
        """A cold call of another compiler, to be entered."""
        from tritonprobe.adapter.outside import Kinds, OutsideCall

        if self._kinds is None:
            self._kinds = Kinds(self.fault)
        watched = not (self.off or self.settings.disabled)
        return OutsideCall(self.adapter.calls if watched else None, name, self._kinds.admit(kind), self.fault)

    def tell(self, cold: ColdCall) -> None:
        """A cold call of this thread that was found to be one when it was over."""
        if not self.off:
            self.adapter.calls.tell(cold)

    def cold_ns(self) -> int:
        """Wall time of this thread's cold calls that are over."""
        return self.adapter.calls.cold_ns

    def first_step(self, tokens: int, ns: int) -> None:
        """An engine's first step of up to so many tokens took so much longer than the same again, beyond cold calls."""
        self.ledger.add(FIRST_STEPS, (f"<={tokens}", self._recorder.rank), ns / 1e9)

    def fault(self, part: str) -> None:
        """Counts a fault of ours; the first of each part is logged with its traceback. Never raises."""
        try:
            self.ledger.add(ERRORS, (part,))
            if part not in self._said:
                self._said.add(part)
                raised = sys.exc_info()[0] is not None  # a misuse is counted as well, and has no traceback
                log.warning("tritonprobe: a fault in %s; the program is not affected", part, exc_info=raised)
        except Exception:
            log.debug("tritonprobe: a fault could not be counted", exc_info=True)

    def _client_error(self, kind: str) -> None:
        """Counts what a client sent that cannot be read: no fault of the program's or ours. Never raises."""
        try:
            self.ledger.add(CLIENT_ERRORS, (kind,))
        except Exception:
            self.fault("ledger")

    def describe(self) -> None:
        """Writes `info` once more, if what it says has changed. Without Triton there is nothing to say."""
        triton = sys.modules.get("triton")
        if triton is None:
            return
        try:
            info = (__version__, triton.__version__, self.device, self.adapter.counting)
        except Exception:
            self.fault("info")
            return
        if info != self._info:
            if self._info is not None:
                self.ledger.set(INFO, self._info, None)
            self._info = info
            self.ledger.set(INFO, info, 1.0)

    def after_fork(self) -> None:
        """For a forked child, whose copy of the lock may be held by a thread that it does not have."""
        self._lock = threading.RLock()
        self._cold.after_fork()

    def _launch_error(self, error: LaunchError) -> None:
        self.bus.publish(error)

    def _remember(self, event: Event) -> None:
        if isinstance(event, ColdCall):
            self.cold_calls.append(event)
        elif isinstance(event, RequestCost):
            self.requests.append(event)


_current: Runtime | None = None
_lock = threading.RLock()  # reentrant: a signal's handler may run inside


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)


def current() -> Runtime:
    """The process's runtime, made from the environment's settings at first use. Raises SettingError."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                made = Runtime(Settings.from_env())
                if _current is None:
                    _current = made
                else:  # a signal's handler was faster
                    made.give_up()
    return _current


def configure(**changes: object) -> None:
    """Changes settings in code, before the probe is in use. Raises SettingError, or RuntimeError once it is."""
    global _current
    with _lock:
        if _current is not None and _current.is_in_use():
            uses = "probe, op, instrument, request, ready, serve or collector"
            raise RuntimeError(f"configure() comes before the first {uses}")
        before = _current
        settings = (before.settings if before is not None else Settings.from_env()).with_(**changes)
        made = Runtime(settings)
        if before is not None:  # who listened before goes on to listen, and this process stays in its engine
            made.bus.take_over(before.bus)
            engine = before.live.engine
            before.give_up()
            if engine is not None and settings.engine is None:
                made.join(engine)
        _current = made
