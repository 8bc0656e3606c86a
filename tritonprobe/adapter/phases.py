"""Where a cold call's time goes: the functions of Triton that only cold calls reach, each under the name of its phase.

Touches `JITFunction._pack_args` and `_do_compile`, `compiler.compile`'s callees, the backends' stages, the cache
managers, `CompiledKernel` and the driver's creation. None of them runs on a hot launch, except
`CompiledKernel._init_handles`, whose early return is therefore inlined.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tritonprobe.adapter.calls import UNKNOWN_BUCKET, Calls, OpenCall
from tritonprobe.adapter.census import CensusRecorder
from tritonprobe.adapter.explanations import Explanations
from tritonprobe.adapter.kernels import name_of
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.process_init import ProcessInit
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.sites import Site
from tritonprobe.ledger.schema import VARIANTS

log = logging.getLogger("tritonprobe")

MAX_HASHES = 100_000  # variants told apart for the gauge
FIRST_LAUNCH = "first launch of a variant that was compiled before"


class Phases:
    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        enabled: Callable[[], bool],
        choose_again: Callable[[Site], None],
        census: CensusRecorder,
    ) -> None:
        """``choose_again(site)`` gives a kernel whose dimensions changed another binder."""
        self._choose_again = choose_again
        self._census = census
        self._registry = registry
        self._calls = calls
        self._enabled = enabled
        self._hashes: dict[str, set[int]] = {}
        self._reasons = Explanations(registry.fault)
        self._init = ProcessInit(calls, enabled, registry.fault)
        self.process_init = self._init.do
        self.loaded: Callable[[Any, Site], None] = lambda kernel, site: None  # told of each binary that was loaded

    def install(self, patches: Patches) -> None:
        from triton.compiler import compiler
        from triton.runtime import build, cache
        from triton.runtime.jit import JITFunction

        timed = self._calls.timed
        patches.replace(JITFunction, "_pack_args", self._pack_args)
        patches.replace(JITFunction, "_do_compile", self._do_compile)
        patches.replace(compiler, "get_cache_key", self._get_cache_key)
        for source in _sources():
            patches.replace(source, "make_ir", timed("frontend"))
        for backend in _backends():
            patches.replace(backend, "add_stages", self._add_stages)
            patches.replace(backend, "get_codegen_implementation", timed("process_init"))
            patches.replace(backend, "get_module_map", timed("process_init"))
        for method, phase in (
            ("get_group", "cache_read"),
            ("get_file", "cache_read"),
            ("put", "cache_write"),
            ("put_group", "cache_write"),
        ):
            patches.replace(cache.FileCacheManager, method, timed(phase))
            patches.replace(cache.RemoteCacheManager, method, timed(phase))
        patches.replace(cache.RemoteCacheManager, "get_group", self._remote_group)
        patches.replace(compiler.CompiledKernel, "__init__", self._kernel_read)
        patches.replace(compiler.CompiledKernel, "_init_handles", self._init_handles)
        for launcher in _launchers():
            patches.replace(launcher, "__init__", timed("launcher_build"))
        patches.replace(build, "_build", timed("launcher_build"))
        # `triton.runtime.driver` as an attribute is the DriverConfig; the module is only in sys.modules.
        patches.replace(sys.modules["triton.runtime.driver"], "_create_driver", self._init.create_driver)

    def _pack_args(self, original: Any) -> Any:
        @functools.wraps(original)
        def pack_args(jit: Any, backend: Any, kwargs: Any, bound: Mapping[str, Any], *rest: Any) -> Any:
            site = self._registry.site(jit) if self._enabled() else None
            call, ours = self._calls.begin() if site is not None else (None, False)
            if call is None or site is None:
                return original(jit, backend, kwargs, bound, *rest)
            depth = call.enter("binder")
            try:
                self._name_bucket(call, site, bound)
                return original(jit, backend, kwargs, bound, *rest)
            finally:
                call.leave(depth)
                if ours:
                    self._calls.close(call)

        return pack_args

    def _name_bucket(self, call: OpenCall, site: Site, bound: Mapping[str, Any]) -> None:
        try:
            # First the name: this launch was counted with the dimensions as they were.
            bucket = self._registry.thread.bucket = site.bucket(bound)
            if call.bucket is None and call.kernel == site.name:
                call.bucket = bucket
            if site.shape is not None and site.learn(bound):
                self._choose_again(site)
        except Exception:
            self._registry.fault("phases")

    def _do_compile(self, original: Any) -> Any:
        @functools.wraps(original)
        def do_compile(
            jit: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, warmup: Any
        ) -> Any:
            site = self._registry.site(jit) if self._enabled() else None
            # A prewarming thread compiles where no launch holds it, and says so.
            call, ours = self._calls.begin(site.name, site.mode) if site is not None else (None, False)
            if call is None or site is None:
                return original(jit, key, signature, device, constexprs, options, attrs, warmup)
            backend = jit.device_caches[device][3]
            self.process_init(backend)
            # Taken, not looked at: another kernel may be launched inside, and `preload` comes without one.
            thread = self._registry.thread
            bucket, thread.bucket = thread.prewarming or thread.bucket or UNKNOWN_BUCKET, None
            depth = call.enter("lookup")
            call.look_up()
            variant = None
            try:
                variant = self._reasons.explain(call, site.name, jit, signature, constexprs, attrs, options)
                call.key_parts = None
                kernel = original(jit, key, signature, device, constexprs, options, attrs, warmup)
                if kernel is not None and getattr(kernel, "hash", None) is not None:
                    call.found(site.name, bucket, call.tier)
                    self.count_variant(call, site.name, kernel.hash)
                    if thread.prewarming is None:
                        inputs = (signature, constexprs, attrs, options)
                        found = (key, inputs, backend, kernel.hash)
                        self._census.variant(jit, found, sys._getframe(1), bucket, site.mode, thread.config)
                    if call.tier == "compile" and variant is not None:
                        self._reasons.explain_disk(call, variant)
                elif kernel is None:  # a jit_cache_hook took the launch away
                    site.count_failed(bucket)
                return kernel
            except BaseException as error:
                if ours:
                    call.error = type(error).__name__
                if variant is not None:
                    self._reasons.raised(variant)
                raise
            finally:
                call.leave(depth)
                if ours:
                    self._calls.close(call)

        return do_compile

    def count_variant(self, call: OpenCall, name: str, digest: str) -> None:
        """Notes a variant of a kernel for the gauge, and as the call's own if it has none yet."""
        if call.hash is None:
            call.hash = digest
        seen = self._hashes.setdefault(name, set())
        if len(seen) < MAX_HASHES:
            seen.add(hash(digest))
            self._registry.ledger.set(VARIANTS, (name,), len(seen))

    def _get_cache_key(self, original: Any) -> Any:
        """Also the start of a compile that no launch holds (Inductor's, an ahead-of-time one, another thread's)."""

        @functools.wraps(original)
        def get_cache_key(source: Any, *args: Any, **kwargs: Any) -> Any:
            call = self._calls.current
            if call is None and self._enabled():
                call = self._unheld(source)
            if call is None:
                return original(source, *args, **kwargs)
            depth = call.enter("lookup")
            try:
                key = original(source, *args, **kwargs)
                self._reasons.note_parts(call, source, args, kwargs)
                return key
            finally:
                call.leave(depth)

        return get_cache_key

    def _unheld(self, source: Any) -> OpenCall | None:
        jit = getattr(source, "fn", None)
        if jit is None or not self._registry.watched(jit):
            return None
        caller = sys._getframe(2)  # compile(), or whoever wants a key
        if caller.f_code.co_name != "compile":
            return None
        call, ours = self._calls.begin(name_of(jit))
        if call is not None and ours:
            call.frame = caller  # a stack without it means that it raised
            call.kind = "compile"
            call.look_up()
            call.reasons = ("compiled outside of a launch",)
            call.enter("lookup")
        return call

    def _kernel_read(self, original: Any) -> Any:
        """`CompiledKernel.__init__`, the last step of every compile() and of every hit."""

        @functools.wraps(original)
        def init(kernel: Any, source: Any, group: Any, digest: Any, *args: Any, **kwargs: Any) -> None:
            call = self._calls.current
            if call is None:
                original(kernel, source, group, digest, *args, **kwargs)
                return
            depth = call.enter("cache_read")
            try:
                original(kernel, source, group, digest, *args, **kwargs)
            finally:
                call.leave(depth)
            if call.kind == "compile" and call.frame is sys._getframe(1):
                call.found(call.kernel, UNKNOWN_BUCKET, call.tier)
                self.count_variant(call, call.kernel, digest)
                self._calls.close(call)

        return init

    def _add_stages(self, original: Any) -> Any:
        """Reached by compiles only, not by hits. Each stage of the pipeline becomes a phase under its own name."""

        @functools.wraps(original)
        def add_stages(backend: Any, stages: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            result = original(backend, stages, *args, **kwargs)
            call = self._calls.current
            if call is not None:
                call.tier = "compile"
                if call.stack and call.stack[-1].name == "lookup":
                    call.switch("frontend")
                for name, stage in list(stages.items()):
                    stages[name] = self._calls.timed(name)(stage)
            return result

        return add_stages

    def _remote_group(self, original: Any) -> Any:
        @functools.wraps(original)
        def get_group(manager: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(manager, *args, **kwargs)
            call = self._calls.current
            if call is not None and found:
                call.tier = "remote"
            return found

        return get_group

    def _init_handles(self, original: Any) -> Any:
        calls, registry, enabled = self._calls, self._registry, self._enabled

        @functools.wraps(original)
        def init_handles(kernel: Any) -> Any:
            if kernel.module is not None:
                return None  # Triton's own first line: this runs on every launch
            jit = getattr(kernel.src, "fn", None)
            site = registry.site(jit) if jit is not None and enabled() else None
            if site is None:
                return original(kernel)
            call, ours = calls.begin(name_of(jit))
            if call is None:
                return original(kernel)
            if not call.lookups and not call.reasons:
                call.reasons = (FIRST_LAUNCH,)
            if call.bucket is None and call.frame is not None and "bound_args" in call.frame.f_locals and site:
                self._name_bucket(call, site, call.frame.f_locals["bound_args"])
            depth = call.enter("module_load")
            try:
                return original(kernel)
            except BaseException as error:
                if ours:
                    call.error = type(error).__name__
                raise
            finally:
                call.leave(depth)
                if kernel.module is not None:
                    self.loaded(kernel, site)
                    self._census.grid(kernel.hash)
                if ours:
                    calls.close(call)
                elif kernel.module is not None and call.mode == "launch" and not call.stack:
                    call.enter("first_launch")  # until the launch that holds the call returns

        return init_handles


def _sources() -> list[Any]:
    from triton.compiler.compiler import ASTSource

    try:
        from triton.experimental.gluon._runtime import GluonASTSource
    except ImportError:
        return [ASTSource]
    # A subclass that inherits make_ir is covered by its parent.
    return [ASTSource, GluonASTSource] if "make_ir" in vars(GluonASTSource) else [ASTSource]


def _backends() -> list[Any]:
    from triton.backends import backends

    return [backend.compiler for backend in backends.values()]


def _launchers() -> list[Any]:
    """The classes whose instances launch; on Triton 3.6 making one builds a C stub with gcc."""
    found = []
    for name, attribute in (("nvidia", "CudaLauncher"), ("amd", "HIPLauncher")):
        try:
            module = importlib.import_module(f"triton.backends.{name}.driver")
        except Exception as error:  # a backend's driver module may need its own libraries
            log.debug("tritonprobe: no launcher of %s: %s", name, error)
            continue
        if hasattr(module, attribute):
            found.append(getattr(module, attribute))
    return found
