"""The stall: when serving threads were in cold calls. Knows intervals and the numbers of `threads`; bounded.

A thread that has run a step is a serving thread. While no thread has ever run one (a server without `step`), every
thread counts whose cold calls the runtime reports; it never reports background threads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from tritonprobe.requests.exposure import Interval, coalesce, union

MAX_STALLS = 4096
"""Finished cold calls remembered. Beyond it the narrowest gaps between those that count are closed: the stall may then
be too long, never too short."""
MAX_THREADS = 4096
"""Serving threads remembered. Beyond it the first is forgotten, until it runs its next step."""

Tagged = tuple[int, int, int]
"""(start, end, tag): a stall, and the step that it happened in as `journal.ref` numbers them; 0 if none is known."""

OpenStalls = Callable[[], Iterable[tuple[int, int]]]
"""Gives (start_ns, thread) of each cold call in progress. A call must stay in it until `Stalls.add` was told of its
end, or a request that finishes just then would miss it; being in both places does no harm."""

COUNTED = -1
"""Stands for the serving threads of peers, and for those that counted when their stalls were merged; no thread has a
negative number."""


class Stalls:
    """What the serving threads spent in cold calls, as far as a live request may ask for it."""

    __slots__ = ("_finished", "_lock", "_open", "serving")

    def __init__(self, open_stalls: OpenStalls) -> None:
        self._open = open_stalls
        self._lock = threading.RLock()  # reentrant: a signal's handler may run inside
        self.serving: dict[int, None] = {}  # the first to serve comes first
        self._finished: list[tuple[int, int, int, int]] = []  # (end, start, thread, tag), sorted

    def serve(self, thread: int) -> None:
        """From now on, and for what is remembered, `thread` is a serving thread."""
        if thread in self.serving:
            return
        with self._lock:
            self.serving[thread] = None
            if len(self.serving) > MAX_THREADS:
                self.serving.pop(next(iter(self.serving)), None)

    def add(self, start: int, end: int, thread: int, needed_from: int, tag: int = 0) -> None:
        """Remembers a finished cold call, and forgets what ended before `needed_from`."""
        with self._lock:
            insort(self._finished, (end, start, thread, tag))
            del self._finished[: bisect_left(self._finished, (needed_from + 1,))]
            if len(self._finished) > MAX_STALLS:
                counted = union((start, end) for end, start, thread, _ in self._finished if self.counts(thread))
                self._finished = [(end, start, COUNTED, 0) for start, end in coalesce(counted, MAX_STALLS // 2)]

    def between(self, since: int, now: int, *, everyone: bool = False) -> list[Interval]:
        """The stall from `since` to `now` as sorted, disjoint intervals; cold calls in progress last until `now`.

        With `everyone`, threads that have not run a step count too: they may yet become serving threads.
        """
        in_progress = [(start, now, thread) for start, thread in self._open()]  # first: see OpenStalls
        with self._lock:
            finished = self._finished[bisect_left(self._finished, (since + 1,)) :]
        found = in_progress + [(start, end, thread) for end, start, thread, _ in finished]
        return union(
            (max(start, since), min(end, now)) for start, end, thread in found if everyone or self.counts(thread)
        )

    def tagged(self, since: int, now: int) -> list[Tagged]:
        """The finished cold calls that count, from `since` to `now`, each with its step's tag."""
        with self._lock:
            finished = self._finished[bisect_left(self._finished, (since + 1,)) :]
        return [(start, end, tag) for end, start, thread, tag in finished if start < now and self.counts(thread)]

    def ended_after(self, time: int) -> bool:
        """Whether a remembered cold call, of any thread, ended after that."""
        finished = self._finished
        return bool(finished) and finished[-1][0] > time

    @property
    def any(self) -> bool:
        """Whether any finished cold call is remembered."""
        return bool(self._finished)

    def counts(self, thread: int) -> bool:
        """Whether `thread` is a serving thread as far as is known now."""
        return not self.serving or thread in self.serving or thread == COUNTED

    def after_fork(self) -> None:
        """For a forked child: none of its threads has served, and its requests have waited for nothing yet."""
        self._lock = threading.RLock()
        self.serving = {}
        self._finished = []
