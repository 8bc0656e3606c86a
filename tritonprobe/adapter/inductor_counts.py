"""Counting the launches of TorchInductor's kernels, which never enter `JITFunction.run`. Reads `CachingAutotuner`.

One statement at the top of `CachingAutotuner.run` adds to a cell (about 0.1 us). The cells stand beside the autotuners,
never in them: Inductor pickles its autotuners into caches.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from tritonprobe.adapter.inductor_names import MODULES, Names, canonical_name
from tritonprobe.adapter.kernels import jit_function, name_of
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.sites import MAX_SHAPES, UNBOUND
from tritonprobe.ledger.schema import LAUNCHES, LOOKUPS_FAILED, TRIALS
from tritonprobe.ledger.store import Cell
from tritonprobe.model import Mode
from tritonprobe.shapes.buckets import ALL, BucketSpec, default_spec

PRELUDE = """
if benchmark_run:
    _tritonprobe_trial(self, args)
else:
    try:
        (_tritonprobe_site := _tritonprobe_hot[id(self)])[1][_tritonprobe_site[0](args)][0] += 1
    except Exception:
        _tritonprobe_miss(self, args)
"""

Hot = tuple[Callable[[Any], Any], dict[Any, Cell]]
_nothing = itemgetter(slice(0, 0))  # () of any arguments


def original_kernel(name: str, source: str | None = None) -> Any:
    """The user's kernel that Inductor copied into a module of its own, found by its name (and its source), or None."""
    for module in list(sys.modules.values()):
        value = getattr(module, "__dict__", {}).get(name)
        if (
            value is None
            or not str(type(value).__module__).startswith("triton.")
            or module.__name__.startswith(MODULES)
        ):
            continue
        jit = jit_function(value)
        if jit is not None and (source is None or getattr(jit, "src", None) == source):
            return jit
    return None


class InductorSite:
    """One autotuner's counting: which of its arguments make the bucket, and a cell for each of their values."""

    def __init__(self, autotuner: Any, name: str, spec: BucketSpec | None, registry: Registry) -> None:
        self.autotuner = weakref.ref(autotuner)
        self.name = name
        self.cells: dict[Any, Cell] = {}
        self._registry = registry
        self._spec = spec
        self._memo = registry.memo(name)
        self._dims: tuple[tuple[str, int], ...] | None = None  # names and places, known once arguments were seen
        params = getattr(autotuner.fn, "params", ())
        self._names = tuple(param.name for param in params if not param.is_constexpr)  # in the order of `run`'s args
        self._extra = len(autotuner.inductor_meta.get("extra_launcher_args", ()))

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Whether these are a launch's arguments as we know them."""
        return len(args) == len(self._names) + self._extra

    def bucket(self, args: tuple[Any, ...]) -> str:
        """The bucket of a launch with these arguments: by its numels (``xnumel<=1024``), or ``all``."""
        if not self.fits(args):
            return ALL
        values = dict(zip(self._names, args[: len(self._names)], strict=True))
        spec = self._spec or default_spec(self._names, values)
        if self._dims is None:
            self._dims = tuple((dim, self._names.index(dim)) for dim, _ in spec.dims if dim in self._names)
        return self._memo.admit(spec.name(values))

    def key(self) -> Callable[[Any], Any]:
        """What gets a cell's key from a launch's arguments."""
        return itemgetter(*(place for _, place in self._dims)) if self._dims else _nothing


class InductorCounts:
    def __init__(self, registry: Registry, enabled: Callable[[], bool]) -> None:
        self._registry = registry
        self._enabled = enabled
        self._names = Names()
        self._lock = threading.RLock()
        self._sites: dict[int, InductorSite | None] = {}  # None: not watched
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.hot: dict[int, Hot] = {}  # what the prelude reads

    def refresh(self) -> None:
        """What is watched has changed: everything is looked at anew."""
        with self._lock:
            self.hot.clear()
            self._sites.clear()
            self._alive.clear()

    def name(self, kernel: str, user: bool, source: str | None = None) -> tuple[str, Any] | None:
        """A watched kernel's name in metrics and, if it is a user's, the original; None for one that is not watched."""
        try:
            return self._name(kernel, user, source)
        except Exception:
            self._registry.fault("inductor")
            return None

    def _name(self, kernel: str, user: bool, source: str | None) -> tuple[str, Any] | None:
        original = None
        if user:  # under its own name, or with an ordinal
            original = original_kernel(kernel, source) or original_kernel(kernel.rpartition("_")[0], source)
        if original is None:
            return (self._names.admit(canonical_name(kernel)), None) if self._registry.everything else None
        return (name_of(original), original) if self._registry.watched(original) else None

    def site(self, autotuner: Any) -> InductorSite | None:
        """The site of a watched autotuner."""
        key = id(autotuner)
        if key in self._sites:
            return self._sites[key]
        with self._lock:
            if key in self._sites:
                return self._sites[key]
            try:
                site = self._make(autotuner)
            except Exception:  # an autotuner that we do not know goes uncounted
                site = None
                self._registry.fault("inductor")
            self._alive[key] = weakref.ref(autotuner, lambda _: self._forget(key))
            self._sites[key] = site
            if site is None:
                self.hot[key] = (_nothing, {(): [0.0]})  # a cell that nobody reads
            return site

    def _make(self, autotuner: Any) -> InductorSite | None:
        if autotuner.triton_interpret:
            return None  # the interpreter's own launches are counted where it runs them
        user, fn = autotuner.custom_kernel, autotuner.fn
        kernel = getattr(fn, "__name__", "")
        if not user:
            kernel = autotuner.inductor_meta.get("kernel_name", kernel)
        named = self._name(kernel, user, getattr(fn, "src", None))
        if named is None:
            return None
        name, original = named
        spec = None if original is None else self._registry.spec(original)
        return InductorSite(autotuner, name, spec, self._registry)

    def miss(self, autotuner: Any, args: tuple[Any, ...]) -> None:
        """Counts a launch whose cell is not known yet. Called from the prelude; never raises."""
        try:
            site = self.site(autotuner) if self._enabled() else None
            if site is None:
                return
            cell = self._cell(LAUNCHES, site, args)
            cell[0] += 1
            if not site.fits(args):
                return  # such a launch raises
            key = site.key()
            value = key(args)
            # Only plain values are remembered: a tensor as a key would pin its memory.
            if all(type(v) in (int, str, bool, type(None)) for v in (value if type(value) is tuple else (value,))):
                if len(site.cells) >= MAX_SHAPES:
                    site.cells.clear()
                site.cells[value] = cell
                self.hot[id(autotuner)] = (key, site.cells)
        except Exception:
            self._registry.fault("inductor")

    def trial(self, autotuner: Any, args: tuple[Any, ...]) -> None:
        """Counts a launch made to benchmark. Never raises."""
        try:
            site = self.site(autotuner) if self._enabled() else None
            if site is not None:
                self._cell(TRIALS, site, args)[0] += 1
        except Exception:
            self._registry.fault("inductor")

    def trial_cell(self, autotuner: Any, args: tuple[Any, ...]) -> Cell | None:
        """Where the benchmark launches with these arguments are counted."""
        site = self.site(autotuner)
        return None if site is None else self._cell(TRIALS, site, args)

    def failed(self, site: InductorSite, args: tuple[Any, ...] | None) -> None:
        """A launch raised before a variant was found for it."""
        self._registry.ledger.add(LOOKUPS_FAILED, (site.name, UNBOUND if args is None else site.bucket(args)))

    def _cell(self, metric: Any, site: InductorSite, args: tuple[Any, ...]) -> Cell:
        return self._registry.ledger.cell(metric, (site.name, site.bucket(args)))

    def _forget(self, key: int) -> None:
        # An address may be in use again only once its autotuner is gone, which is when this is called.
        self.hot.pop(key, None)
        self._sites.pop(key, None)
        self._alive.pop(key, None)


def mode_of(names: Mapping[str, Any]) -> Mode:
    """What a call of `CachingAutotuner.run` with these local names is for."""
    asked = names.get("benchmark_run", names.get("kwargs", {}).get("benchmark_run", False))
    return "trial" if asked else "launch"
