"""What the first step of a size took longer than the same again, and was no cold call. Pure; knows no engine.

An engine's first requests also wait for what no compiler tells of: kernels of torch and cuBLAS that CUDA loads at their
first launch, heuristics that run once, memory that the allocator asks for. Nobody can see that as it happens without
watching every launch of the process. But a step of the same size comes again: the first one's time, less that of its
cold calls and of the slower of the next two, is what was done once. It is known afterwards, so requests are not charged
with it.
"""

from __future__ import annotations

from collections.abc import Callable

COMPARED = 2
"""Steps of the size, without a cold call, that the first is compared with."""
LEAST_NS = 5_000_000
"""Less is how steps differ anyway."""
MAX_SIZES = 1024
MAX_KNOWN = 65_536
MAX_DUE = 64
ANY = 0
"""Due as long as nobody says which steps are: each may be."""

Size = tuple[int, int]
"""Tokens and requests in a step."""


class FirstSteps:
    def __init__(self, tell: Callable[[int, int], None]) -> None:
        """``tell(tokens, ns)``: tokens is the size's upper edge, a power of two."""
        self._tell = tell
        self._first: dict[Size, int] = {}  # nanoseconds, by size rounded up
        self._next: dict[Size, list[int]] = {}  # of sizes that are not told of yet
        self.known: set[Size] = set()  # exact sizes that need not be told of any more
        self.due: set[int] = {ANY}  # steps to be told of, by numbers of the engine's: whoever runs them looks here

    def expect(self, step: int, size: Size) -> bool:
        """The engine is going to run a step of that exact size. Whether it is known; else the step is due."""
        self.due.discard(ANY)
        if size in self.known:
            return True
        if len(self.due) >= MAX_DUE:  # they never ran
            self.due.clear()
        self.due.add(step)
        return False

    def step(self, exact: Size, took_ns: int, cold_ns: int) -> None:
        """A step is over, on the host: its wall time, and that of its thread's cold calls in it."""
        if 0 in exact:
            return
        size = (1 << (exact[0] - 1).bit_length(), 1 << (exact[1] - 1).bit_length())
        compared = self._next.get(size)
        if compared is None:
            if size not in self._first and len(self._first) < MAX_SIZES:
                self._first[size] = took_ns - cold_ns
                self._next[size] = []
            elif len(self.known) < MAX_KNOWN:
                self.known.add(exact)
            return
        if cold_ns:
            return
        compared.append(took_ns)
        if len(compared) == COMPARED:
            del self._next[size]
            once = self._first[size] - max(compared)
            if once >= LEAST_NS:
                self._tell(size[0], once)
