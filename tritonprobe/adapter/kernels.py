"""Which kernels are watched, what they are called, and a `Site` for each: the cells its launches are counted in.

Touches Triton's kernel objects (`JITFunction`, `Autotuner`, `Heuristics`, `InterpretedFunction`), never their
behaviour.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tritonprobe.adapter.inductor_names import MODULES, canonical_name
from tritonprobe.adapter.rewrite import PLAIN_TYPES
from tritonprobe.adapter.strangers import Strangers
from tritonprobe.ledger.schema import LAUNCHES, LOOKUPS_FAILED, TRIALS, WARMUPS, Metric
from tritonprobe.ledger.store import Cell, Ledger
from tritonprobe.living import in_modules, instances
from tritonprobe.model import Mode
from tritonprobe.shapes.buckets import BucketMemo, BucketSpec, default_spec

MAX_SHAPES = 8192  # distinct shapes a site remembers on the hot path; then it forgets them all and learns again
_METRIC: dict[Mode, Metric] = {"launch": LAUNCHES, "trial": TRIALS, "warmup": WARMUPS}
MAX_NAMES = 4096  # kernels' names whose buckets are bounded together; beyond it the oldest starts anew
UNBOUND = "unbound"  # the bucket of a call that raised before its arguments were bound


def jit_function(kernel: Any) -> Any:
    """The `JITFunction` (or `InterpretedFunction`) at the bottom of autotuners and heuristics, or None."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for _ in range(32):
        if isinstance(kernel, (JITFunction, InterpretedFunction)):
            return kernel
        kernel = getattr(kernel, "fn", None)
    return None


def is_kernel(thing: Any) -> bool:
    """Whether `thing` is one of Triton's kernel objects."""
    from triton.runtime.jit import KernelInterface

    return issubclass(type(thing), KernelInterface) and jit_function(thing) is not None


def name_of(jit: Any) -> str:
    """``module.qualname`` of a kernel; Inductor's have names of their own."""
    fn = jit.fn
    module = getattr(fn, "__module__", None) or "?"
    name = str(getattr(fn, "__qualname__", None) or getattr(fn, "__name__", "?"))
    # The modules that Inductor writes are named by a hash, and there is no end of them.
    return canonical_name(name) if module.startswith(MODULES) else f"{module}.{name}"


def _constexprs(jit: Any) -> tuple[str, ...]:
    if hasattr(jit, "params"):
        return tuple(p.name for p in jit.params if p.is_constexpr)
    # The interpreter's kernels have annotations only: the class, or its text where the module postpones them.
    annotated = inspect.signature(jit.fn).parameters.values()
    return tuple(p.name for p in annotated if "constexpr" in str(p.annotation))


class _Thread(threading.local):
    mode: Mode = "launch"
    site: Site | None = None
    bucket: str | None = None  # of the latest in-memory miss
    trials: int = 0  # autotune trials under way, of watched kernels and others
    config: str | None = None  # of the trial under way
    prewarming: str | None = None  # bucket of the census entry that is replayed


class Shape:
    """Which arguments make a kernel's bucket, and what was counted by them so far."""

    __slots__ = ("_remembered", "dims", "hot", "names", "rules")

    def __init__(self, rules: BucketSpec) -> None:
        self.rules = rules
        self.dims = tuple(dim for dim, _ in rules.dims)
        self.hot: dict[Any, Any] = {}  # value of the first dim -> ... of the last -> cell: what binders look into
        self._remembered = 0
        self.names: dict[Any, str] = {}  # values -> bucket

    def key(self, values: Mapping[str, Any]) -> Any:
        """What a binder makes of a launch's arguments: a value, a tuple of several, None of none."""
        key = tuple(values.get(dim) for dim in self.dims)
        return key[0] if len(key) == 1 else key or None

    def remember(self, key: Any, cell: Cell) -> None:
        """From now on binders find the cell of these values by themselves."""
        if self._remembered >= MAX_SHAPES:
            self.hot.clear()
            self._remembered = 0
        self._remembered += 1
        *path, last = key if len(self.dims) > 1 else (key,)
        place = self.hot
        for value in path:
            place = place.setdefault(value, {})
        place[last] = cell

    def cell(self, key: Any) -> Cell | None:
        """The cell of these values, if it is remembered."""
        found: Any = self.hot
        for value in key if len(self.dims) > 1 else (key,):
            found = found.get(value)
            if found is None:
                return None
        cell: Cell = found  # the last of the dicts holds cells
        return cell

    def values(self, key: Any) -> dict[str, Any]:
        """The other way round."""
        if not self.dims:
            return {}
        return dict(zip(self.dims, key if len(self.dims) > 1 else (key,), strict=True))


class Site:
    """One kernel's counting: values of its dimensions -> cell, apart for launches, trials and warm-ups.

    While a trial or warm-up of the kernel runs on any thread, its binders look into an empty dict instead of the hot
    one, so that each call goes to `miss`, which knows from the thread what the call is for. The hot statement never
    changes.
    """

    def __init__(self, jit: Any, registry: Registry, spec: BucketSpec | None) -> None:
        self.kernel = weakref.ref(jit)
        self.name = name_of(jit)
        self.spec = spec
        self.params: tuple[str, ...] = tuple(jit.arg_names)
        self.constexprs = _constexprs(jit)
        self.autotune_keys: tuple[str, ...] = ()
        self.shape: Shape | None = None  # known once a launch was seen
        self.namespaces: list[dict[str, Any]] = []  # of the binders that count here, by the present shape
        self.hooks: list[Any] = []
        self.strategy: str | None = None
        self.lock = threading.RLock()
        self._registry = registry
        self._sessions: set[object] = set()  # trials and warm-ups under way, on any thread
        self._memo = registry.memo(self.name)

    def bucket(self, values: Mapping[str, Any]) -> str:
        """The bucket of a launch with these bound arguments, by the dimensions its binder counts with."""
        rules = self._rules_for(values) if self.shape is None else self.shape.rules
        return self._memo.admit(rules.name(values))

    def learn(self, values: Mapping[str, Any]) -> bool:
        """Learns from a launch which arguments make the bucket; whether these are others than before.

        An optional argument may be None in the first launch, so what is learnt later is added.
        """
        rules = dict(self._rules_for(values).dims)
        if self.shape is not None:
            if self.spec is not None:
                return False
            rules = {**dict(self.shape.rules.dims), **rules}
            if len(rules) == len(self.shape.dims):
                return False
        self.shape = Shape(BucketSpec(tuple(rules.items())))
        self.namespaces = []  # binders that count by the former shape go on with its cells until they are replaced
        return True

    def forget(self) -> None:
        """Another spec was given: the next launch decides anew."""
        self.shape, self.namespaces = None, []

    def _rules_for(self, values: Mapping[str, Any]) -> BucketSpec:
        return self.spec or default_spec(
            self.params, values, autotune_keys=self.autotune_keys, constexprs=self.constexprs
        )

    def miss(self, shape: Shape, key: Any) -> None:
        """Counts a call whose values are not in `shape.hot`. Called from the binder; never raises."""
        try:
            name = self.bucket_of(shape, key)
            mode = self.mode
            cell = self._registry.ledger.cell(_METRIC[mode], (self.name, name))
            cell[0] += 1
            if mode == "launch" and not self._sessions and is_plain(key):
                shape.remember(key, cell)
        except Exception:
            self._registry.fault("binder")

    def bucket_of(self, shape: Shape, key: Any) -> str:
        """The bucket of a launch whose dimensions, those of `shape`, have these values."""
        plain = is_plain(key)
        name = shape.names.get(key) if plain else None
        if name is None:
            name = self._memo.admit(shape.rules.name(shape.values(key)))
            if plain:
                if len(shape.names) >= MAX_SHAPES:
                    shape.names.clear()
                shape.names[key] = name
        return name

    def count_unbound(self) -> None:
        """Counts a call that raised before its binder could."""
        self._registry.ledger.add(_METRIC[self.mode], (self.name, UNBOUND))
        self.count_failed(UNBOUND)

    def count_failed(self, bucket: str) -> None:
        """Counts a call that raised before a variant was found for it."""
        self._registry.ledger.add(LOOKUPS_FAILED, (self.name, bucket))

    @property
    def mode(self) -> Mode:
        """What a call of this kernel on this thread is for."""
        thread = self._registry.thread
        if thread.site is self:
            return thread.mode
        # A tuner's benchmark may run its trials on a thread of its own, and one may have begun before we came.
        return "trial" if (self._sessions or self._registry.has_strangers()) and _in_trial() else "launch"

    @contextmanager
    def session(self, mode: Mode, cells_name: str) -> Iterator[None]:
        """Calls of this kernel on this thread count as `mode`."""
        thread = self._registry.thread
        before = (thread.mode, thread.site)
        token = object()
        try:
            # Inside, so that an interrupt (Ctrl-C) between any two of these leaves nothing behind.
            with self.lock:
                self._sessions.add(token)
                for namespace in self.namespaces:
                    namespace[cells_name] = {}
            thread.mode, thread.site = mode, self
            yield
        finally:
            thread.mode, thread.site = before
            with self.lock:
                self._sessions.discard(token)
                self.settle(cells_name)

    def settle(self, cells_name: str) -> None:
        """Lets the binders count in `hot` again once no trial and no warm-up is left."""
        if not self._apart() and self.shape is not None:
            for namespace in self.namespaces:
                namespace[cells_name] = self.shape.hot

    def forked(self, cells_name: str) -> None:
        """In a forked child: only the forking thread lives on, with its own sessions at most."""
        self.lock = threading.RLock()
        if self._registry.thread.site is not self:
            self._sessions.clear()
        self.settle(cells_name)

    def cells_now(self, shape: Shape) -> dict[Any, Any]:
        """What a new binder starts with."""
        return {} if self._apart() else shape.hot

    def _apart(self) -> bool:
        """Whether calls of the kernel have to be told apart, by `miss`."""
        return bool(self._sessions) or self._registry.has_strangers()


def is_plain(key: Any) -> bool:
    """Whether a key may be remembered: a tensor in it would be compared by identity, and pin its memory."""
    return all(type(v) in PLAIN_TYPES for v in (key if type(key) is tuple else (key,)))


class Registry:
    """The sites of one process, and whether all kernels are watched or those that were probed."""

    def __init__(self, ledger: Ledger, fault: Callable[[str], None], buckets_per_kernel: int) -> None:
        self.ledger = ledger
        self.fault = fault
        self.everything = False
        self.thread = _Thread()
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


@functools.cache
def trial_code() -> Any:
    """The code of the function inside `Autotuner._bench` that runs a trial, on whichever thread its benchmark likes."""
    from triton.runtime.autotuner import Autotuner

    bench = inspect.unwrap(Autotuner._bench)
    return next((c for c in bench.__code__.co_consts if getattr(c, "co_name", None) == "kernel_call"), None)


def _in_trial() -> bool:
    code = trial_code()
    frame: FrameType | None = sys._getframe(2)
    for _ in range(24):
        if frame is None or code is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def living_kernels() -> list[Any]:
    """Every `JITFunction` of the process: those the collector tracks, and those in modules.

    After ``gc.freeze()`` (servers call it) the collector lists none, hence both; `Registry.kernels` knows more.
    """
    from triton.runtime.jit import JITFunction, KernelInterface

    named = [jit for value in in_modules(KernelInterface) if isinstance(jit := jit_function(value), JITFunction)]
    return list({id(jit): jit for jit in (*named, *instances(JITFunction))}.values())
