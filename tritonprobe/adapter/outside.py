"""Cold calls of compilers that are not Triton: told by whoever calls them. Knows clocks and `calls`, no compiler.

A stall is a stall whoever compiles: it is timed by the same outer clock, has a phase named after its kind, and is
charged to the requests that wait. Inside a cold call that is open already it is a phase of that one, so that no second
counts twice; and what Triton compiles inside it is part of it.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from types import TracebackType

from tritonprobe.adapter.calls import Calls, OpenCall
from tritonprobe.model import OTHER, TIERS, Tier

MAX_KINDS = 32
"""Kinds of one process: each is a value of the label `phase`."""
MAX_NAME = 128
BUCKET = "all"

_KIND = re.compile("[a-z][a-z0-9_]{0,31}")
# Kinds that Triton's own cold calls go by, and which decide how they end.
_TAKEN = frozenset(("triton", "compile", "inductor", "prewarm"))


class Kinds:
    """The kinds of a process: names that may be labels, so many and no more."""

    def __init__(self, fault: Callable[[str], None]) -> None:
        self._known: set[str] = set()
        self._fault = fault

    def admit(self, kind: object) -> str:
        """`kind` itself; `other`, and a counted fault, for what cannot be one."""
        if isinstance(kind, str) and kind in self._known:
            return kind
        if not isinstance(kind, str) or not _KIND.fullmatch(kind) or kind in _TAKEN or len(self._known) >= MAX_KINDS:
            try:
                # Nothing but text is shown: a tensor's would read it.
                given = reprlib.repr(kind) if type(kind) is str else f"a {type(kind).__name__}"
                allowed = (
                    f"a word of a-z, 0-9 and _, none of {', '.join(sorted(_TAKEN))}, and {MAX_KINDS} of them at most"
                )
                raise ValueError(f"cold_call: {given} is no kind, and counted as {OTHER!r}; expected {allowed}")
            except ValueError:
                self._fault("cold_call")  # which logs it, once
            return OTHER
        self._known.add(kind)
        return kind


class OutsideCall:
    """One stretch of another compiler's work: a context manager, for the thread that waits.

    ``tier`` says where the result was found; set it inside the block if it is known (``disk``), else it is a compile.
    """

    __slots__ = ("_call", "_calls", "_depth", "_fault", "_kind", "_name", "_ours", "tier")

    def __init__(self, calls: Calls | None, name: str, kind: str, fault: Callable[[str], None]) -> None:
        """Without `calls` nothing is watched, and the block just runs."""
        self.tier: Tier = "compile"
        self._calls = calls
        self._fault = fault
        self._name = str(name)[:MAX_NAME]
        self._kind = kind
        self._call: OpenCall | None = None
        self._ours = False
        self._depth = 0

    def __enter__(self) -> OutsideCall:
        if self._calls is not None:
            held = self._calls.current
            try:
                self._call, self._ours = call, ours = self._calls.begin(self._name)
                if call is not None:
                    if ours:
                        call.kind, call.bucket = self._kind, BUCKET
                    self._depth = call.enter(self._kind)
            except Exception:
                self._fault("cold_call")
            except BaseException as interrupt:  # there will be no end of the block
                begun = self._calls.current
                if begun is not None and begun is not held:
                    self._calls.drop(begun, interrupt)
                raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        call, self._call = self._call, None
        if call is None or self._calls is None:
            return
        try:
            if call is not self._calls.current:
                self._fault("cold_call")  # the block ended on another thread than it began on, or after its launch
                return
            call.leave(self._depth)
            if self._ours:
                call.told = self.tier if self.tier in TIERS else "compile"
                call.error = None if error is None else type(error).__name__
                self._calls.close(call)
        except Exception:
            self._fault("cold_call")
        except BaseException as interrupt:  # nobody else would end it
            if self._ours:
                self._calls.drop(call, interrupt)
            raise
