"""Open cold calls: one a thread at most, phases on a stack, an end where the launch ends. Knows clocks, not Triton.

Phases are exclusive: a phase's time does not contain that of the phases inside it, so that they add up to the wall
time and what nobody named is `other`. A cold call begins where the first sign of one is seen (a binder is built, a
variant is missing, a module is not loaded, a tuner has no answer) and ends when the launch call that holds it returns
or raises.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from tritonprobe.adapter.ends import Watch
from tritonprobe.model import OTHER, ColdCall, Lookup, Mode, Tier, Tuning, Variant
from tritonprobe.tracing import current_trace

now = time.monotonic_ns
F = TypeVar("F", bound=Callable[..., Any])

# The dearest tier names the call.
_DEARNESS: dict[Tier, int] = {"memory": 0, "disk": 1, "remote": 2, "compile": 3}
UNKNOWN_BUCKET = "unknown"


class _Phase:
    __slots__ = ("carried", "children", "name", "start")

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.children = 0  # time of the phases inside the present stretch
        self.carried = 0  # stretches already charged to earlier names


class OpenCall:
    """A cold call in progress on one thread."""

    __slots__ = (
        "bucket",
        "error",
        "frame",
        "hash",
        "kernel",
        "key_parts",
        "kind",
        "lookups",
        "mode",
        "phases",
        "reasons",
        "session",
        "stack",
        "start",
        "tier",
        "told",
        "trace",
        "trial_error",
        "unix",
        "variant",
        "watch",
    )

    def __init__(self, kernel: str, mode: Mode, frame: FrameType | None) -> None:
        self.start = now()
        self.unix = time.time_ns()
        self.trace = current_trace()
        self.kernel = kernel
        self.mode = mode
        self.frame = frame
        self.kind = "triton"
        self.bucket: str | None = None
        self.tier: Tier = "memory"  # of the lookup now under way
        self.told: Tier | None = None  # by another compiler's cold call, which looks nothing up here
        self.phases: dict[str, int] = {}
        self.stack: list[_Phase] = []
        self.lookups: dict[tuple[str, str, Tier], int] = {}
        self.reasons: tuple[str, ...] = ()
        self.variant: Variant | None = None
        self.hash: str | None = None
        self.session: Any = None  # the tuning.Session that runs in it
        self.key_parts: dict[str, str] | None = None  # of the disk key that was looked up last
        self.trial_error: str | None = None  # of the trial under way; the tuner swallows it
        self.error: str | None = None
        self.watch: Watch | None = None  # which knows of it from its beginning to its end

    def let_go(self) -> None:
        """For whoever finds that its thread has ended without ending it."""
        if self.watch is not None:
            self.watch.abandon(self)

    def enter(self, name: str) -> int:
        """Begins a phase; returns the depth to `leave` to."""
        self.stack.append(_Phase(name, now()))
        return len(self.stack) - 1

    def leave(self, depth: int) -> None:
        """Ends the phase begun at `depth`, and whatever was left open inside it."""
        while len(self.stack) > depth:
            phase = self.stack.pop()
            stretch = now() - phase.start
            self._charge(phase.name, stretch - phase.children)
            if self.stack:
                self.stack[-1].children += stretch + phase.carried

    def switch(self, name: str) -> None:
        """From here on the innermost phase goes on under another name."""
        if self.stack:
            phase = self.stack[-1]
            t = now()
            self._charge(phase.name, t - phase.start - phase.children)
            phase.carried += t - phase.start
            phase.name, phase.start, phase.children = name, t, 0

    def tuning(self) -> Tuning | None:
        """What the tuning session in it came to; None if there was none, or its tuner cannot say."""
        if self.session is None:
            return None
        try:
            found: Tuning = self.session.result()
            return found
        except Exception:
            return None

    def look_up(self) -> None:
        """A lookup begins: the disk answers, unless a compile or a remote cache is seen before it ends."""
        self.tier = "disk"

    def found(self, kernel: str, bucket: str, tier: Tier) -> None:
        key = (kernel, bucket, tier)
        self.lookups[key] = self.lookups.get(key, 0) + 1

    def _charge(self, name: str, ns: int) -> None:
        self.phases[name] = self.phases.get(name, 0) + ns

    def finished(self) -> ColdCall:
        self.leave(0)
        end = now()
        rest = end - self.start - sum(self.phases.values())
        self._charge(OTHER, rest)
        # A call that raised was looking in the tier it had come to.
        tiers = [tier for _, _, tier in self.lookups] or [self.tier if self.error else "memory"]
        if self.told is not None:
            tiers.append(self.told)
        return ColdCall(
            kernel=self.kernel,
            bucket=self.bucket or UNKNOWN_BUCKET,
            tier=max(tiers, key=lambda tier: _DEARNESS[tier]),
            start_ns=self.start,
            end_ns=end,
            unix_ns=self.unix,
            phases=tuple(self.phases.items()),
            lookups=tuple(Lookup(k, b, t, n) for (k, b, t), n in self.lookups.items()),
            reasons=self.reasons,
            mode=self.mode,
            kind=self.kind,
            variant=self.variant,
            hash=self.hash,
            tuning=self.tuning(),
            error=self.error,
            thread=threading.get_ident(),
            trace=self.trace,
        )


class _Local(threading.local):
    call: OpenCall | None = None
    cold_ns: int = 0


class Calls:
    """The cold calls in progress of one process."""

    def __init__(self, opened: Callable[[OpenCall], None], closed: Callable[[ColdCall], None], watch: Watch) -> None:
        """`opened` and `closed` are told of each call; `watch` knows while one is open."""
        self._opened = opened
        self._closed = closed
        self._watch = watch
        self._local = _Local()
        # Code of the functions that end a call, and what each calls its kernel or tuner.
        self.guarded: dict[CodeType, str] = {}
        self.name_of: Callable[[Any], tuple[str, Mode] | None] = lambda _: None

    @property
    def current(self) -> OpenCall | None:
        """This thread's open call."""
        return self._local.call

    @property
    def cold_ns(self) -> int:
        """Wall time of this thread's cold calls that are over."""
        return self._local.cold_ns

    def begin(self, kernel: str | None = None, mode: Mode = "launch") -> tuple[OpenCall | None, bool]:
        """This thread's call, opened if need be; and whether the caller must `close` it.

        It need not if a guarded function runs below us on the stack: its end closes the call. None if that function's
        kernel is not watched. `kernel` names a call that no guarded function holds (None: then there is no call), and
        `mode` says what it is for.
        """
        frame: FrameType | None = sys._getframe(1)
        holder: FrameType | None = None
        held = self._local.call
        alive = held is not None and held.frame is None
        while frame is not None:
            if held is not None and frame is held.frame:
                alive = True
                break
            if holder is None and frame.f_code in self.guarded:
                holder = frame
                if held is None:
                    break
            frame = frame.f_back
        if held is not None:
            if alive:
                return held, False
            self.close(held)  # its function is gone without an end (a compile that raised outside any launch)
        if holder is not None:
            named = self.name_of(holder.f_locals.get(self.guarded[holder.f_code]))
            if named is None:
                return None, False
            return self._open(OpenCall(named[0], named[1], holder)), False
        if kernel is None:
            return None, False
        return self._open(OpenCall(kernel, mode, None)), True

    def tell(self, cold: ColdCall) -> None:
        """Publishes a cold call of this thread that was found to be one when it was over."""
        if self._local.call is None:  # else the one in progress contains it
            self._end(cold)

    def _open(self, call: OpenCall) -> OpenCall:
        try:
            self._local.call = call
            call.watch = self._watch
            self._watch.begin_slow(call)
            self._opened(call)
        except BaseException as error:  # an interrupt: nobody else would end it
            self.drop(call, error)
            raise
        return call

    def drop(self, call: OpenCall, error: BaseException) -> None:
        """Ends a call that was interrupted as it began or ended. One that looked for nothing yet is no cold call."""
        call.error = type(error).__name__
        self.close(call)

    def close(self, call: OpenCall) -> None:
        if self._local.call is not call:
            return
        self._local.call = None
        try:
            self._watch.end_slow(call)
        except BaseException:  # an interrupt; twice is once
            self._watch.end_slow(call)
            raise
        call.frame = None
        self._end(call.finished())

    def _end(self, cold: ColdCall) -> None:
        self._local.cold_ns += cold.wall_ns
        self._closed(cold)

    def end_of(self, frame: FrameType) -> None:
        """A guarded function returns or raises: its call, if it has one, is over."""
        call = self._local.call
        if call is not None and call.frame is frame:
            self.close(call)

    def timed(self, phase: str) -> Callable[[F], F]:
        """Wraps a function: inside an open call its time goes to `phase`, else it is passed through."""

        def around(original: F) -> F:
            @functools.wraps(original)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                call = self._local.call
                if call is None:
                    return original(*args, **kwargs)
                depth = call.enter(phase)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    if call.kind == "compile":  # no launch holds it, so nothing else will end it
                        call.error = type(error).__name__
                        self.close(call)
                    raise
                finally:
                    call.leave(depth)

            return wrapper  # type: ignore[return-value]  # functools.wraps keeps the face

        return around
