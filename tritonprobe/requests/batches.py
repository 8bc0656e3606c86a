"""The batches of steps: read once as long as they stay the same, and the time that calm steps took of their requests.

A step in which nothing stalled, and beside which no other ran, took the same of each of its requests. So there is one
meter, which such steps turn; a request notes where it stood when it joined, and counts the difference when it leaves.
What a step costs is then a comparison of its batch with the last one, and something for each request that came or went.

All of this is done in C (`batches.c`), or, where that cannot be built, by what is written here, which says what the C
has to do. What an engine should not give, a stranger for instance, is read here in either case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from tritonprobe import native
from tritonprobe.requests.request import LiveRequest
from tritonprobe.tracing import Trace

SOURCE = Path(__file__).with_name("batches.c")

Misuse = Callable[[str, str], None]
"""Is told what kind of thing an engine did that it should not, and what it was."""


class Batch:
    """Whose tokens a step works on. What few steps are asked for is found out when somebody asks."""

    __slots__ = ("_members", "_others", "_requests", "_traces", "given")

    given: list[Any]  # requests and ids as the engine gave them, some perhaps twice; the same as long as it is held

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    @property
    def requests(self) -> list[LiveRequest]:
        """The requests of this process, each once."""
        try:
            return self._requests
        except AttributeError:
            found = dict.fromkeys(entry for entry in self.given if isinstance(entry, LiveRequest))
            self._requests: list[LiveRequest] = list(found)
            return self._requests

    @property
    def others(self) -> list[str]:
        """The ids of those that another process holds."""
        try:
            return self._others
        except AttributeError:
            found = dict.fromkeys(entry for entry in self.given if isinstance(entry, str))
            self._others: list[str] = list(found)
            return self._others

    @property
    def members(self) -> frozenset[LiveRequest]:
        try:
            return self._members
        except AttributeError:
            self._members: frozenset[LiveRequest] = frozenset(self.requests)
            return self._members

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Those of its requests that are sampled."""
        try:
            return self._traces
        except AttributeError:
            found = dict.fromkeys(request.trace for request in self.requests if request.trace is not None)
            self._traces: tuple[Trace, ...] = tuple(found)
            return self._traces


NOBODY = Batch([])


class Batches(Protocol):
    """What is remembered of an engine's batches: the last one, and the meter of the calm steps."""

    def read(self, batch: Iterable[object], ids: bool, /) -> Batch:
        """Who is in a step: the last step's answer if its batch was the same. `ids`: whether anybody hears of ids."""

    def turn(self, batch: Batch, start: int, end: int, /) -> None:
        """A calm step over `batch` lasted from `start` to `end`. Under the owner's lock, as what follows."""

    def beside(self, batch: Batch, start: int, end: int, overlaps: bool, /) -> list[LiveRequest]:
        """Such a step ran beside another one; what they share counts once. `overlaps`: the other one was no rank of it.

        Where one lies inside another, what the outer ran before it is in the remainder. Returns who waits for what its
        windows of other steps mean: counted up to here without them, they would be lost.
        """

    def metered(self, request: LiveRequest, /) -> int:
        """What calm steps took of a request since it joined, which is in none of its own figures yet."""

    def forget(self) -> None:
        """Holds no request any more: one that nobody else holds will never finish."""


def batches(misuse: Misuse) -> Batches:
    """Those of an engine that has had no step yet. May take a compiler's time, see `native`."""
    module = compiled()
    if module is None:
        return InPython(misuse)
    found: Batches = module.Batches(
        LiveRequest, Batch, NOBODY, functools.partial(_listed, misuse), functools.partial(_look, misuse)
    )
    return found


@functools.cache
def compiled() -> Any:
    """The module of C, or None."""
    return native.load(SOURCE)


class InPython:
    """The batches of an engine without C."""

    __slots__ = ("_last", "_metered", "_misuse", "_ns")

    def __init__(self, misuse: Misuse) -> None:
        self._misuse = misuse
        self._last = NOBODY
        self._metered = NOBODY  # whose requests have joined
        self._ns = 0

    def read(self, batch: Iterable[object], ids: bool, /) -> Batch:
        given: list[Any] = batch if batch.__class__ is list else _listed(self._misuse, batch)
        paired = bool(given) and given[0].__class__ is tuple
        if paired:
            given = _without_beside(given)
        last = self._last
        if _same(given, last.given) and (ids or not last.others):
            return last
        members = _new_set(given, last)
        if members is not None:
            made = Batch(given if paired else given[:])  # a copy: the engine may go on with its list
            made._members, made._others = members, []
        else:
            made = _look(self._misuse, given if paired else _without_beside(given), ids)
            if len(made.given) < len(given) or (made.others and not ids):
                return made  # and the next one is looked at, too
        self._last = made
        return made

    def turn(self, batch: Batch, start: int, end: int, /) -> None:
        if batch is not self._metered:
            self._change(batch, start)
        self._ns += end - start

    def beside(self, batch: Batch, start: int, end: int, overlaps: bool, /) -> list[LiveRequest]:
        waiting = []
        for request in batch.requests:
            if overlaps:
                request._pipelined = True
            if request._windows:
                waiting.append(request)
                continue
            since = max(request._executed_to, start)
            if since < end:
                request._executed += end - since
                request._executed_to = end
            if request._first_step_ns is None or start < request._first_step_ns:
                request._first_step_ns = start
        return waiting

    def metered(self, request: LiveRequest, /) -> int:
        return 0 if request._joined is None else self._ns - request._joined

    def forget(self) -> None:
        self._last = NOBODY
        if self._metered is not NOBODY:
            self._change(NOBODY, 0)

    def _change(self, batch: Batch, start: int) -> None:
        before, after = self._metered.members, batch.members
        new = after - before
        gone = before - after if len(before) + len(new) > len(after) else ()
        for request in gone:
            ns = self.metered(request)
            request._joined = None  # first: after an interrupt in between it may count too little, never twice
            request._executed += ns
        for request in new:
            request._joined = self._ns
            if request._first_step_ns is None or start < request._first_step_ns:
                request._first_step_ns = start
        self._metered = batch


def _listed(misuse: Misuse, batch: Iterable[object]) -> list[Any]:
    """What an engine gave that is no list."""
    try:
        return list(batch)
    except Exception as error:
        misuse("batch", f"a step's batch could not be read: {type(error).__name__}: {error}")
        return []


def _without_beside(given: list[Any]) -> list[Any]:
    """What stands beside a request is not looked at: comparing a tensor would be work for the GPU."""
    return [item[0] if item.__class__ is tuple and item else item for item in given]


def _look(misuse: Misuse, entries: list[Any], ids: bool) -> Batch:
    """Who is in a batch that may hold anything. Strangers are told of, and so are ids of which nobody hears."""
    try:
        strangers = sorted({type(e).__name__ for e in entries if not issubclass(type(e), (LiveRequest, str))})
        made = Batch([e for e in entries if issubclass(type(e), (LiveRequest, str))])
        _, others = made.requests, made.others  # now: a hash of their own may raise
    except Exception as error:
        misuse("batch", f"a step's batch could not be read: {type(error).__name__}: {error}")
        return NOBODY
    if strangers:
        misuse("batch", f"a step's batch holds requests or their ids, not {', '.join(strangers)}")
    elif others and not ids:
        misuse("ids", "a step's batch holds ids of requests, and no process hears of them: see join()")
    return made


def _new_set(entries: list[Any], last: Batch) -> frozenset[LiveRequest] | None:
    """The entries of a batch in which all who are new are requests: only they have to be looked at. Else None."""
    try:
        members = frozenset(entries)
        return members if all(entry.__class__ is LiveRequest for entry in members - last.members) else None
    except Exception:  # a stranger without a hash
        return None


def _same(given: list[Any], last: list[Any]) -> bool:
    try:
        return given == last
    except Exception:  # a stranger may refuse to be compared
        return False
