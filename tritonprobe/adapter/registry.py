"""Which kernels are watched, the `Site` of each, and what each thread is about."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.homes import MAIN, home_of, module_of
from tritonprobe.adapter.kernels import living_kernels
from tritonprobe.adapter.sites import Site
from tritonprobe.adapter.trial_stacks import Strangers
from tritonprobe.ledger.store import Ledger
from tritonprobe.model import Mode
from tritonprobe.shapes.buckets import BucketMemo, BucketSpec

MAX_NAMES = 4096  # kernels' names whose buckets are bounded together; beyond it the oldest starts anew


class _Thread(threading.local):
    mode: Mode = "launch"
    site: Site | None = None
    bucket: str | None = None  # of the latest in-memory miss
    trials: int = 0  # autotune trials under way, of watched kernels and others
    config: str | None = None  # of the trial under way
    prewarming: str | None = None  # bucket of the census entry that is replayed


class Registry:
    """The sites of one process, and whether all kernels are watched or those that were probed."""

    def __init__(self, ledger: Ledger, fault: Callable[[str], None], buckets_per_kernel: int) -> None:
        self.ledger = ledger
        self.fault = fault
        self.everything = False
        self.thread = _Thread()
        self.homes: dict[str, str] = {}  # of the modules in `MAIN` whose kernels are watched
        self._limit = buckets_per_kernel
        self._sites: dict[int, Site] = {}
        self._former: dict[int, Site] = {}  # of before the last `forget_sites`: a trial of theirs may be under way
        self._strangers = Strangers()
        self._met = False  # whether any is left
        self._cells_name = ""
        self._specs: dict[int, tuple[weakref.ref[Any], BucketSpec | None]] = {}
        self._made: list[weakref.ref[Any]] = []  # kernels, as they are made
        self._sweep_made_at = 256
        self._memos: dict[str, BucketMemo] = {}
        self._sweep_at = 256
        self._lock = threading.RLock()

    def probe(self, jit: Any, spec: BucketSpec | None) -> None:
        """Watches one kernel, with its bucket spec."""
        key = id(jit)
        with self._lock:
            self._drop_dead(self._specs, lambda found: found[0]())
            self._specs[key] = (weakref.ref(jit), spec)
            site = self._sites.get(key)
            if site is not None and site.kernel() is jit:
                site.spec = spec
                site.forget()

    def remember(self, jit: Any) -> None:
        """A kernel was made: it can be found again, whatever becomes of the collector's view of it."""
        with self._lock:
            if len(self._made) >= self._sweep_made_at:
                self._made = [made for made in self._made if made() is not None]
                self._sweep_made_at = max(256, 2 * len(self._made))
            self._made.append(weakref.ref(jit))

    def kernels(self) -> list[Any]:
        """The living kernels that are known here, and those that the collector and modules know."""
        with self._lock:
            known = [*self._made, *(site.kernel for site in (*self._sites.values(), *self._former.values()))]
        mine = [jit for each in known if hasattr(jit := each(), "device_caches")]
        return list({id(jit): jit for jit in (*mine, *living_kernels())}.values())

    def spec(self, jit: Any) -> BucketSpec | None:
        """The bucket spec a kernel was probed with."""
        found = self._specs.get(id(jit))
        return found[1] if found is not None and found[0]() is jit else None

    def watched(self, jit: Any) -> bool:
        if self.everything:
            return True
        found = self._specs.get(id(jit))
        return found is not None and found[0]() is jit

    def site(self, jit: Any) -> Site | None:
        """The site of a watched kernel; None for any other."""
        found = self._sites.get(id(jit))
        if found is not None and found.kernel() is jit:
            return found
        if not self.watched(jit):
            return None
        with self._lock:
            found = self._sites.get(id(jit))
            if found is None or found.kernel() is not jit:
                self._drop_dead(self._sites, lambda site: site.kernel())
                if (module := module_of(jit.fn)) in MAIN:
                    self.homes[module] = home_of(jit.fn)
                found = self._sites[id(jit)] = self._again(jit) or Site(jit, self, self.spec(jit))
            return found

    def _again(self, jit: Any) -> Site | None:
        """The site that a kernel had before the patches were taken back."""
        found = self._former.pop(id(jit), None)
        if found is None or found.kernel() is not jit:
            return None
        if found.spec != (spec := self.spec(jit)):
            found.spec = spec
            found.forget()
        return found

    def meet(self, cells_name: str) -> None:
        """The patches come now."""
        self._cells_name = cells_name
        self._strangers.meet()
        self._met = self._strangers.left()

    def has_strangers(self) -> bool:
        """Whether a trial of before the patches is under way. After the last the binders count by themselves again."""
        if self._met and not self._strangers.left():
            self._met = False
            for site in self.sites():
                site.settle(self._cells_name)
        return self._met

    def _drop_dead(self, table: dict[int, Any], alive: Callable[[Any], Any]) -> None:
        """Forgets kernels that are gone, now and then.

        References with callbacks would run Python inside any collection, and Python 3.11's parser does not bear that.
        """
        if len(table) >= self._sweep_at:
            for key in [key for key, found in table.items() if alive(found) is None]:
                del table[key]
            self._sweep_at = max(256, 2 * len(table))

    def sites(self) -> list[Site]:
        with self._lock:
            return list(self._sites.values())

    def forget_sites(self) -> None:
        with self._lock:
            former = {**self._former, **self._sites}
            self._former = {key: site for key, site in former.items() if site.kernel() is not None}
            self._sites = {}

    def memo(self, name: str) -> BucketMemo:
        """Kernels of one name (made anew in a loop, say) share one bound."""
        with self._lock:
            if len(self._memos) >= MAX_NAMES and name not in self._memos:
                del self._memos[next(iter(self._memos))]
            return self._memos.setdefault(name, BucketMemo(self._limit))

    def forked(self, cells_name: str) -> None:
        """In a forked child: no lock is held by a thread that is not there."""
        self._lock = threading.RLock()
        for site in (*self._sites.values(), *self._former.values()):
            site.forked(cells_name)
