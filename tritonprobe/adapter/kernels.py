"""Which kernels are watched, what they are called, and a `Site` for each: the cells its launches are counted in.

Touches Triton's kernel objects (`JITFunction`, `Autotuner`, `Heuristics`, `InterpretedFunction`), never their
behaviour.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tritonprobe.adapter.inductor_names import MODULES, canonical_name
from tritonprobe.ledger.schema import LAUNCHES, LOOKUPS_FAILED, TRIALS, WARMUPS, Metric
from tritonprobe.ledger.store import Cell, Ledger
from tritonprobe.model import Mode
from tritonprobe.shapes.buckets import BucketMemo, BucketSpec, default_spec

MAX_SHAPES = 8192  # distinct shapes a site remembers on the hot path; then it forgets them all and learns again
_METRIC: dict[Mode, Metric] = {"launch": LAUNCHES, "trial": TRIALS, "warmup": WARMUPS}
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


class Site:
    """One kernel's counting: shape -> cell, apart for launches, trials and warm-ups.

    While a trial or warm-up of the kernel runs on any thread, its binders look into an empty dict instead of `hot`, so
    that each call goes to `miss`, which knows from the thread what the call is for. The hot statement never changes.
    """

    def __init__(self, jit: Any, registry: Registry, spec: BucketSpec | None) -> None:
        self.kernel = weakref.ref(jit)
        self.name = name_of(jit)
        self.spec = spec
        self.params: tuple[str, ...] = tuple(jit.arg_names)
        self.constexprs = _constexprs(jit)
        self.autotune_keys: tuple[str, ...] = ()
        self.dims: tuple[str, ...] = ()
        self.hot: dict[Any, Cell] = {}
        self.namespaces: list[dict[str, Any]] = []  # of the binders that count here
        self.plain_of: dict[Any, Any] = {}  # our binder -> Triton's own, to put back
        self.hooks: list[Any] = []
        self.strategy: str | None = None
        self.lock = threading.RLock()
        self._registry = registry
        self._sessions = 0
        self._memo = registry.memo(self.name)
        self._names: dict[Any, str] = {}

    def bucket(self, values: Mapping[str, Any]) -> str:
        """The bucket of a launch with these bound arguments."""
        spec = self.spec or default_spec(
            self.params, values, autotune_keys=self.autotune_keys, constexprs=self.constexprs
        )
        return self._memo.admit(spec.name(values))

    def choose_dims(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments whose values make the bucket, learnt at the first launch."""
        if self.spec is not None:
            self.dims = tuple(dim for dim, _ in self.spec.dims)
        else:
            spec = default_spec(self.params, values, autotune_keys=self.autotune_keys, constexprs=self.constexprs)
            self.dims = tuple(dim for dim, _ in spec.dims)
        return self.dims

    def miss(self, key: Any) -> None:
        """Counts a call whose shape is not in `hot`. Called from the binder; never raises."""
        try:
            # A tensor as a key would be compared by identity and pin its memory: only plain values are remembered.
            plain = all(type(v) in (int, str, bool, type(None)) for v in (key if type(key) is tuple else (key,)))
            name = self._names.get(key) if plain else None
            if name is None:
                name = self.bucket(self._values(key))
                if plain:
                    self._remember(self._names, key, name)
            thread = self._registry.thread
            mode = thread.mode if thread.site is self else "launch"
            cell = self._registry.ledger.cell(_METRIC[mode], (self.name, name))
            cell[0] += 1
            if plain and mode == "launch" and self._sessions == 0:
                self._remember(self.hot, key, cell)
        except Exception:
            self._registry.fault("binder")

    def count_unbound(self) -> None:
        """Counts a call that raised before its binder could."""
        thread = self._registry.thread
        mode = thread.mode if thread.site is self else "launch"
        self._registry.ledger.add(_METRIC[mode], (self.name, UNBOUND))
        self.count_failed(UNBOUND)

    def count_failed(self, bucket: str) -> None:
        """Counts a call that raised before a variant was found for it."""
        self._registry.ledger.add(LOOKUPS_FAILED, (self.name, bucket))

    @property
    def mode(self) -> Mode:
        """What a call of this kernel on this thread is for."""
        thread = self._registry.thread
        return thread.mode if thread.site is self else "launch"

    @contextmanager
    def session(self, mode: Mode, cells_name: str) -> Iterator[None]:
        """Calls of this kernel on this thread count as `mode`."""
        thread = self._registry.thread
        before = (thread.mode, thread.site)
        with self.lock:
            self._sessions += 1
            for namespace in self.namespaces:
                namespace[cells_name] = {}
        thread.mode, thread.site = mode, self
        try:
            yield
        finally:
            thread.mode, thread.site = before
            with self.lock:
                self._sessions -= 1
                if self._sessions == 0:
                    for namespace in self.namespaces:
                        namespace[cells_name] = self.hot

    def cells_now(self) -> dict[Any, Cell]:
        """What a new binder starts with."""
        return self.hot if self._sessions == 0 else {}

    def _values(self, key: Any) -> dict[str, Any]:
        if not self.dims:
            return {}
        return dict(zip(self.dims, key if len(self.dims) > 1 else (key,), strict=True))

    @staticmethod
    def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
        if len(table) >= MAX_SHAPES:
            table.clear()
        table[key] = value


class Registry:
    """The sites of one process, and whether all kernels are watched or those that were probed."""

    def __init__(self, ledger: Ledger, fault: Callable[[str], None], buckets_per_kernel: int) -> None:
        self.ledger = ledger
        self.fault = fault
        self.everything = False
        self.thread = _Thread()
        self._limit = buckets_per_kernel
        self._sites: dict[int, Site] = {}
        self._specs: dict[int, tuple[weakref.ref[Any], BucketSpec | None]] = {}
        self._memos: dict[str, BucketMemo] = {}
        self._lock = threading.RLock()

    def probe(self, jit: Any, spec: BucketSpec | None) -> None:
        """Watches one kernel, with its bucket spec."""
        key = id(jit)
        with self._lock:
            self._specs[key] = (weakref.ref(jit, lambda _: self._specs.pop(key, None)), spec)
            site = self._sites.get(key)
            if site is not None and site.kernel() is jit:
                site.spec = spec

    def spec(self, jit: Any) -> BucketSpec | None:
        """The bucket spec a kernel was probed with."""
        found = self._specs.get(id(jit))
        return None if found is None else found[1]

    def watched(self, jit: Any) -> bool:
        return self.everything or id(jit) in self._specs

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
                key = id(jit)
                found = Site(jit, self, self._specs[key][1] if key in self._specs else None)
                found.kernel = weakref.ref(jit, lambda _: self._sites.pop(key, None))
                self._sites[key] = found
            return found

    def sites(self) -> list[Site]:
        with self._lock:
            return list(self._sites.values())

    def forget_sites(self) -> None:
        with self._lock:
            self._sites.clear()

    def memo(self, name: str) -> BucketMemo:
        """Kernels of one name (made anew in a loop, say) share one bound."""
        with self._lock:
            return self._memos.setdefault(name, BucketMemo(self._limit))


def living_kernels() -> list[Any]:
    """Every `JITFunction` of the process: those the collector tracks, and those in modules.

    After ``gc.freeze()`` (servers call it) the collector lists none, hence both.
    """
    from triton.runtime.jit import JITFunction, KernelInterface

    found: dict[int, Any] = {}
    for module in list(sys.modules.values()):
        if not issubclass(type(module), ModuleType):
            continue
        names = object.__getattribute__(module, "__dict__")  # asking a lazy module itself would load it
        for value in list(names.values()):
            if issubclass(type(value), KernelInterface):
                jit = jit_function(value)
                if isinstance(jit, JITFunction):
                    found[id(jit)] = jit
    for value in gc.get_objects():
        if issubclass(type(value), JITFunction):  # not isinstance: that asks proxies what they stand for
            found[id(value)] = value
    return list(found.values())
