"""A `Site` for each watched kernel: the cells that its launches are counted in, by the values that make a bucket."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tritonprobe.adapter.kernels import constexprs_of, name_of
from tritonprobe.adapter.rewrite import PLAIN_TYPES
from tritonprobe.adapter.trial_stacks import in_trial
from tritonprobe.ledger.schema import LAUNCHES, LOOKUPS_FAILED, TRIALS, WARMUPS, Metric
from tritonprobe.ledger.store import Cell
from tritonprobe.model import Mode
from tritonprobe.shapes.buckets import BucketSpec, default_spec, number_or_text, pow2

if TYPE_CHECKING:
    from tritonprobe.adapter.registry import Registry

MAX_SHAPES = 8192  # distinct shapes a site remembers on the hot path; then it forgets them all and learns again
_METRIC: dict[Mode, Metric] = {"launch": LAUNCHES, "trial": TRIALS, "warmup": WARMUPS}
UNBOUND = "unbound"  # the bucket of a call that raised before its arguments were bound


class Shape:
    """Which arguments make a kernel's bucket, and what was counted by them so far."""

    __slots__ = ("_remembered", "_rounds", "dims", "hot", "names", "rounded", "rules")

    def __init__(self, rules: BucketSpec) -> None:
        self.rules = rules
        self.dims = tuple(dim for dim, _ in rules.dims)
        # Value of the first dim -> ... of the last -> cell: what binders look into. A value that is rounded leads to
        # where its bucket's edge does, which stands for those that were not seen yet.
        self.hot: dict[Any, Any] = {}
        self._remembered = 0
        self._rounds = tuple(rule == "pow2" for _, rule in rules.dims)
        self.rounded = sum(1 << i for i, rounds in enumerate(self._rounds[:64]) if rounds)
        self.names: dict[Any, str] = {}  # edges -> bucket

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
        place: Any = self.hot
        last = len(self.dims) - 1
        for i, (value, edge) in enumerate(zip(self._each(key), self._each(self.edges(key)), strict=True)):
            below = place.get(edge)
            if below is None:
                below = place[edge] = cell if i >= last else {}
            place[own_key(value)] = below
            place = below

    def edges(self, key: Any) -> Any:
        """A plain key with each value that its rule rounds in the place of the others of its range."""
        if len(self.dims) > 1:
            return tuple(map(_edge, self._rounds, key))
        return _edge(self._rounds[0], key) if self.dims else key

    def _each(self, key: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = key if len(self.dims) > 1 else (key,)
        return found

    def cell(self, key: Any) -> Cell | None:
        """The cell of these values, if it is remembered."""
        found: Any = self.hot
        for value in self._each(key):
            found = found.get(own_key(value))
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
        self.constexprs = constexprs_of(jit)
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
            plain = plain_key(key)
            name = self._bucket_of(shape, key, plain)
            mode = self.mode
            cell = self._registry.ledger.cell(_METRIC[mode], (self.name, name))
            cell[0] += 1
            if mode == "launch" and not self._sessions and plain is not NotImplemented:
                shape.remember(plain, cell)
        except Exception:
            self._registry.fault("binder")

    def bucket_of(self, shape: Shape, key: Any) -> str:
        """The bucket of a launch whose dimensions, those of `shape`, have these values."""
        return self._bucket_of(shape, key, plain_key(key))

    def _bucket_of(self, shape: Shape, key: Any, plain: Any) -> str:
        if plain is NotImplemented:
            return self._memo.admit(shape.rules.name(shape.values(key)))
        edges = shape.edges(plain)
        name = shape.names.get(edges)
        if name is None:
            name = self._memo.admit(shape.rules.name(shape.values(plain)))
            if len(shape.names) >= MAX_SHAPES:
                shape.names.clear()
            shape.names[edges] = name
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
        return "trial" if (self._sessions or self._registry.has_strangers()) and in_trial() else "launch"

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


def plain_key(key: Any) -> Any:
    """The values that may be remembered: a tensor in one would be compared by identity, and pin its memory.

    Of a value of a subclass of int or str, such as an enumeration's, the number or text. NotImplemented for any other.
    """
    if type(key) is not tuple:
        return _plain(key)
    found = tuple(map(_plain, key))
    return NotImplemented if NotImplemented in found else found


def own_key(value: Any) -> Any:
    """The key of a plain value that no other value has: True equals 1, and is another value (`launch_count.c`)."""
    return (value,) if type(value) is bool else value


def _edge(rounds: bool, value: Any) -> Any:
    return int(pow2(value)) if rounds and isinstance(value, int) else own_key(value)


def _plain(value: Any) -> Any:
    if type(value) in PLAIN_TYPES:
        return value
    found = number_or_text(value)
    return NotImplemented if found is None else found
