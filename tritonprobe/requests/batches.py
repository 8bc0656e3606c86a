"""The batches of steps: read once as long as they stay the same, and the time that calm steps took of their requests.

A step in which nothing stalled, and beside which no other ran, took the same of each of its requests. So there is one
meter, which such steps turn; a request notes where it stood when it joined, and counts the difference when it leaves.
What a step costs is then a comparison of its batch with the last one, and something for each request that came or went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tritonprobe.requests.request import LiveRequest
from tritonprobe.tracing import Trace


class Batch:
    """Whose tokens a step works on: the requests of this process, and the ids of those that another one holds."""

    __slots__ = ("_traces", "given", "members", "others", "requests")

    def __init__(
        self, given: list[Any], requests: list[LiveRequest], others: list[str], members: frozenset[Any] | None = None
    ) -> None:
        self.given = given  # as the engine gave it, less what stood beside
        self.requests = requests
        self.others = others
        self.members: frozenset[LiveRequest] = frozenset(requests) if members is None else members
        self._traces: tuple[Trace, ...] | None = None

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Those of its requests that are sampled, found out when somebody asks."""
        if self._traces is None:
            self._traces = traces_of(self.requests)
        return self._traces


def traces_of(requests: Iterable[LiveRequest]) -> tuple[Trace, ...]:
    return tuple(dict.fromkeys(request.trace for request in requests if request.trace is not None))


NOBODY = Batch([], [], [])


class Batches:
    """What is remembered of an engine's batches: the last one, and the meter of the calm steps."""

    __slots__ = ("_last", "_metered", "_ns")

    def __init__(self) -> None:
        self._last = NOBODY
        self._metered = NOBODY  # whose requests have joined
        self._ns = 0

    def read(self, batch: Iterable[object], misuse: Callable[[str, str], None], *, ids: bool) -> Batch:
        """Who is in a step: the last step's answer if its batch was the same. `ids`: whether anybody hears of ids."""
        try:
            given: list[Any] = batch if batch.__class__ is list else list(batch)
            # What stands beside a request is not looked at: comparing a tensor would be work for the GPU.
            if given and given[0].__class__ is tuple:
                given = [item[0] if item.__class__ is tuple else item for item in given]
            last = self._last
            if _same(given, last.given) and (ids or not last.others):
                return last
            return self._look(given[:], misuse, ids)  # a copy: the engine may go on with its list
        except Exception as error:
            misuse("batch", f"a step's batch could not be read: {type(error).__name__}: {error}")
            return NOBODY

    def _look(self, entries: list[Any], misuse: Callable[[str, str], None], ids: bool) -> Batch:
        members = _set_of(entries)
        # Only who is new has to be looked at.
        if members is not None and all(entry.__class__ is LiveRequest for entry in members - self._last.members):
            once = entries if len(members) == len(entries) else list(dict.fromkeys(entries))
            made = self._last = Batch(entries, once, [], members)
            return made
        entries = [item[0] if item.__class__ is tuple else item for item in entries]
        others = list(dict.fromkeys(entry for entry in entries if isinstance(entry, str)))
        strangers = sorted({type(e).__name__ for e in entries if not isinstance(e, (LiveRequest, str))})
        made = Batch(entries, list(dict.fromkeys(e for e in entries if isinstance(e, LiveRequest))), others)
        if strangers:
            misuse("batch", f"a step's batch holds requests or their ids, not {', '.join(strangers)}")
        elif others and not ids:
            misuse("ids", "a step's batch holds ids of requests, and no process hears of them: see join()")
        else:
            self._last = made
        return made

    def turn(self, batch: Batch, start: int, end: int) -> None:
        """A calm step over `batch` lasted from `start` to `end`. Under the owner's lock, as what follows."""
        if batch is not self._metered:
            self._change(batch, start)
        self._ns += end - start

    def metered(self, request: LiveRequest) -> int:
        """What calm steps took of a request since it joined, which is in none of its own figures yet."""
        return 0 if request._joined is None else self._ns - request._joined

    def forget(self) -> None:
        """Holds no request any more: one that nobody else holds will never finish."""
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


def _set_of(entries: list[Any]) -> frozenset[Any] | None:
    try:
        return frozenset(entries)
    except Exception:  # a stranger without a hash
        return None


def _same(given: list[Any], last: list[Any]) -> bool:
    try:
        return given == last
    except Exception:  # a stranger may refuse to be compared
        return False
