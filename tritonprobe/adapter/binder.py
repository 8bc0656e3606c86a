"""Counting launches in Triton's binder: about 0.1 us, no clock, no lock, nothing allocated in the steady state.

Triton builds a binder for each kernel and device with ``exec`` at the first launch. Ours is the same function with one
counting statement first (`rewrite.counting_binder`), put in its place after the first call showed which arguments are
integers. Kernels launched before the probe came are adopted. The statement calls a function in C where it can be built
(`launch_count.c`), and is Python, a little dearer, where not. Where the rewrite refuses, Triton's public pre-run hook
counts, dearer still.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tritonprobe import native
from tritonprobe.adapter.calls import Calls
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.rewrite import CELLS, MISS, RewriteError, counting_binder
from tritonprobe.adapter.sites import Shape, Site, plain_key
from tritonprobe.forks import tell_in_child

log = logging.getLogger("tritonprobe")

COUNT_SOURCE = Path(__file__).with_name("launch_count.c")
MOST_KEYS = 256  # of a count in C
CounterType = Callable[[int, int], Callable[..., None]]
"""Makes what counts a launch of so many dimensions, of which those with a bit set are rounded."""
PLAIN = "_tritonprobe_plain"  # on our binders: Triton's own, to put back


class Binders:
    """Installs and removes the counting binders of one registry."""

    def __init__(self, registry: Registry, calls: Calls, enabled: Callable[[], bool]) -> None:
        self._registry = registry
        self._calls = calls
        self._enabled = enabled
        self._generate: Any = None
        self._counter: CounterType | None = None  # in C; None: the statement is Python
        self._warned = False
        self._lock = threading.RLock()  # held while binders are put in their places, or taken out
        tell_in_child(self)
        self.loaded: Callable[[Any, Site], None] = lambda kernel, site: None  # told of each binary found loaded

    def install(self, patches: Patches, starting: Callable[[Any], None]) -> None:
        """Patches the generator; ``starting(backend)`` runs in the `binder` phase of each kernel's first launch."""
        from triton.runtime import jit

        patches.replace(jit.JITFunction, "__init__", self._remembering)
        self._counter = _native_counter()
        self._registry.meet(CELLS)

        def around(generate: Any) -> Any:
            self._generate = generate

            def create_function_from_signature(sig: Any, kparams: Any, backend: Any) -> Any:
                kernel = sys._getframe(1).f_locals.get("self")
                site = self._registry.site(kernel) if self._enabled() and kernel is not None else None
                if site is None:
                    return generate(sig, kparams, backend)
                call, ours = self._calls.begin()
                depth = call.enter("binder") if call is not None else 0
                try:
                    starting(backend)
                    return self._first(site, (sig, kparams, backend), generate(sig, kparams, backend))
                finally:
                    if call is not None:
                        call.leave(depth)
                        if ours:
                            self._calls.close(call)

            return create_function_from_signature

        patches.replace(jit, "create_function_from_signature", around)

    def adopt(self) -> None:
        """Puts counting binders into kernels that were launched before."""
        for kernel in self._registry.kernels():
            self.adopt_one(kernel)

    def adopt_one(self, kernel: Any) -> None:
        site = self._registry.site(kernel)
        if site is None:
            return
        for device, entry in list(kernel.device_caches.items()):
            for loaded in list(entry[0].values()):
                if getattr(loaded, "module", None) is not None:
                    self.loaded(loaded, site)
            # A copy of a kernel shares its caches: a binder of ours stays, whoever's it is.
            if len(entry) == 5 and not hasattr(entry[4], PLAIN):
                self._start_over(site, kernel, device, entry[4])

    def choose_again(self, site: Site, but: Collection[Any] = ()) -> None:
        """The kernel's dimensions changed: binders that count by the new ones take the place of the old.

        Those of the devices `but` are being made.
        """
        kernel = site.kernel()
        if kernel is None:
            return
        with self._lock, site.lock:
            for device, entry in list(kernel.device_caches.items()):
                if len(entry) == 5 and hasattr(entry[4], PLAIN) and device not in but:
                    self._start_over(site, kernel, device, getattr(entry[4], PLAIN))
            self._drop_hooks(site, kernel)

    def remove(self) -> None:
        """Gives every kernel its own binder back."""
        with self._lock:
            for kernel in self._registry.kernels():  # copies share caches, and may outlive whom we knew
                for device, entry in list(kernel.device_caches.items()):
                    if len(entry) == 5 and hasattr(entry[4], PLAIN):
                        kernel.device_caches[device] = (*entry[:4], getattr(entry[4], PLAIN))
            for site in self._registry.sites():
                self._drop_hooks(site, site.kernel())
                with site.lock:
                    site.namespaces = []

    def after_fork(self) -> None:
        """For a forked child: no lock is held by a thread that is not there."""
        self._lock = threading.RLock()

    def _remembering(self, original: Any) -> Any:
        @functools.wraps(original)
        def init(kernel: Any, /, *args: Any, **kwargs: Any) -> None:
            original(kernel, *args, **kwargs)
            if self._enabled():
                self._registry.remember(kernel)

        return init

    def _start_over(self, site: Site, kernel: Any, device: Any, plain: Any) -> None:
        entry = kernel.device_caches[device]
        arguments = (kernel.signature, kernel.params, entry[3])
        kernel.device_caches[device] = (*entry[:4], self._first(site, arguments, plain))

    @staticmethod
    def _drop_hooks(site: Site, kernel: Any) -> None:
        for hook in site.hooks:
            if kernel is not None and hook in kernel.pre_run_hooks:
                kernel.pre_run_hooks.remove(hook)
        site.hooks.clear()

    def _first(self, site: Site, arguments: tuple[Any, ...], plain: Any) -> Any:
        """A binder for one call: binds, looks at the values, and puts the counting binder in its own place."""

        def first_binder(*args: Any, **kwargs: Any) -> Any:
            bound = plain(*args, **kwargs)
            if not self._enabled():
                self._give_back(site, first_binder, plain)
                return bound
            call = self._calls.current
            depth = call.enter("binder") if call is not None else 0  # building ours takes a millisecond
            try:
                self._settle(site, arguments, first_binder, plain, bound[0])
            except Exception:
                self._registry.fault("binder")
            finally:
                if call is not None:
                    call.leave(depth)
            return bound

        setattr(first_binder, PLAIN, plain)
        return first_binder

    def _give_back(self, site: Site, first: Any, plain: Any) -> None:
        """The patches were taken back while Triton made the binder, so that nobody found it."""
        kernel = site.kernel()
        if kernel is None:
            return
        with self._lock:
            for device, entry in list(kernel.device_caches.items()):
                if entry[4] is first and not self._enabled():
                    kernel.device_caches[device] = (*entry[:4], plain)

    def _settle(self, site: Site, arguments: tuple[Any, ...], first: Any, plain: Any, values: dict[str, Any]) -> None:
        kernel = site.kernel()
        if kernel is None:
            return
        with self._lock, site.lock:
            if not self._enabled():  # switched off since the call began
                return
            here = [device for device, entry in list(kernel.device_caches.items()) if entry[4] is first]
            site.autotune_keys = site.autotune_keys or _autotune_keys(kernel)
            if site.learn(values):
                self.choose_again(site, but=here)
            assert site.shape is not None
            shape = site.shape
            binder = self._counting(site, shape, kernel, arguments, plain) if here else None
            for device in here:
                if binder is not None:
                    kernel.device_caches[device] = (*kernel.device_caches[device][:4], binder)
        site.miss(shape, shape.key(values))

    def _counting(self, site: Site, shape: Shape, kernel: Any, arguments: tuple[Any, ...], plain: Any) -> Any:
        miss = functools.partial(site.miss, shape)
        try:
            cells = site.cells_now(shape)
            size = max(len(shape.dims), 1)
            count = None if self._counter is None or size > MOST_KEYS else self._counter(size, shape.rounded)
            _, binder = counting_binder(self._generate, arguments, shape.dims, cells, miss, count)
        except RewriteError as error:
            if not self._warned:
                self._warned = True
                log.warning("tritonprobe: counting through pre_run_hook, dearer by about 0.5 us a launch: %s", error)
            site.strategy = "pre_run_hook"
            if not site.hooks:
                hook = _hook(site, shape)
                site.hooks.append(hook)
                kernel.pre_run_hooks.append(hook)
            return plain
        site.strategy = "inline" if count is None else "native"
        site.namespaces.append(binder.__globals__)
        setattr(binder, PLAIN, plain)
        assert binder.__globals__.keys() >= {CELLS, MISS}
        return binder


def _native_counter() -> CounterType | None:
    counter: CounterType | None = getattr(native.load(COUNT_SOURCE), "Counter", None)
    return counter


def _autotune_keys(kernel: Any) -> tuple[str, ...]:
    """The key of the autotuner that launches `kernel` now, found on the stack: a kernel does not know its tuners."""
    from triton.runtime.autotuner import Autotuner

    frame = inspect.currentframe()
    for _ in range(64):
        if frame is None:
            break
        tuner = frame.f_locals.get("self") if frame.f_code.co_name in ("run", "_bench", "warmup") else None
        if isinstance(tuner, Autotuner):
            return tuple(tuner.keys)
        frame = frame.f_back
    return ()


def _hook(site: Site, shape: Shape) -> Callable[..., None]:
    positions = [(dim, site.params.index(dim)) for dim in shape.dims]

    def count(*args: Any, **kwargs: Any) -> None:
        try:
            values = tuple(args[i] if i < len(args) else kwargs.get(dim) for dim, i in positions)
            key = values[0] if len(values) == 1 else values or None
            plain = plain_key(key)
            if site.mode == "launch" and plain is not NotImplemented:
                cell = shape.cell(plain)
                if cell is not None:
                    cell[0] += 1
                    return
        except TypeError:
            key = None  # unhashable: let `miss` decide
        site.miss(shape, key)

    return count
