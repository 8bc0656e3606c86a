"""TorchInductor's Triton kernels: installed when Inductor is imported, which may be long after `instrument()`.

Touches `CachingAutotuner.run` (a guard and a counting statement, see `rewrite`); `inductor_cold` touches the rest.
Never touches Triton's launch hooks: Inductor would leave its static launcher. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tritonprobe.adapter.calls import Calls
from tritonprobe.adapter.inductor_cold import InductorCold
from tritonprobe.adapter.inductor_counts import PRELUDE, InductorCounts, mode_of
from tritonprobe.adapter.inductor_workers import HEURISTICS, InductorWorkers
from tritonprobe.adapter.late_import import LateImport
from tritonprobe.adapter.launches import Launches
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.phases import Phases
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.rewrite import RewriteError, guard, wrapped
from tritonprobe.model import LaunchError, Mode

log = logging.getLogger("tritonprobe")

ASYNC_COMPILE = "torch._inductor.async_compile"


class Inductor:
    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        launches: Launches,
        phases: Phases,
        watch: list[Any],
        publish: Callable[[LaunchError], None],
        enabled: Callable[[], bool],
        measures: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._launches = launches
        self._watch = watch
        self._publish = publish
        self._enabled = enabled
        self._counts = InductorCounts(registry, enabled)
        self._workers = InductorWorkers(calls, self._counts, enabled)
        self._cold = InductorCold(registry, calls, self._counts, self._workers, phases, enabled, measures)
        self._patches = Patches()
        self._waiting: list[LateImport] = []
        self._autotuner: type | None = None
        self._name_before: Any = None
        self._lock = threading.RLock()  # of our own: an import may hold locks that `instrument()` waits for

    def install(self) -> None:
        """Patches Inductor now, or as soon as it has been imported."""
        with self._lock:
            waiting = self._waiting = [
                LateImport(HEURISTICS, lambda module: self._installing(self._patch_heuristics, module)),
                LateImport(ASYNC_COMPILE, lambda module: self._installing(self._workers.install, module)),
            ]
        for late in waiting:  # without the lock: a thread that imports Inductor now may need it to finish
            late.wait()

    def remove(self) -> list[str]:
        """Takes everything back; returns the names that somebody else had wrapped."""
        with self._lock:
            for late in self._waiting:
                late.cancel()
            self._waiting.clear()
            left = self._patches.undo()
            if self._name_before is not None:
                self._calls.name_of, self._name_before = self._name_before, None
            self._autotuner = None
            self._counts.refresh()
            return left

    def refresh(self) -> None:
        """What is watched has changed."""
        self._counts.refresh()

    def _installing(self, install: Callable[[Patches, Any], None], module: ModuleType) -> None:
        """All of a module's patches or none: an Inductor that we do not know runs on unwatched."""
        with self._lock:
            if not self._waiting:
                return  # uninstalled meanwhile
            fresh = Patches()
            try:
                install(fresh, module)
            except Exception as error:
                fresh.undo()
                log.warning("tritonprobe: this torch's %s is not watched: %r", module.__name__, error)
                return
            self._patches.extend(fresh)

    def _patch_heuristics(self, patches: Patches, heuristics: Any) -> None:
        patches.replace(heuristics.CachingAutotuner, "run", self._run)
        self._cold.install(patches, heuristics)
        self._autotuner = heuristics.CachingAutotuner
        self._name_before = before = self._calls.name_of
        self._calls.name_of = lambda holder: self._call_of(holder, before)

    def _call_of(self, holder: Any, before: Callable[[Any], tuple[str, Mode] | None]) -> tuple[str, Mode] | None:
        if self._autotuner is None or not isinstance(holder, self._autotuner):
            return before(holder)
        site = self._counts.site(holder)
        return None if site is None else (site.name, "launch")

    def _run(self, original: Any) -> Any:
        try:
            if "benchmark_run" not in inspect.signature(original).parameters:
                raise RewriteError("CachingAutotuner.run has no benchmark_run")
            run = guard(
                original,
                raised=self._raised,
                ended=self._ended,
                watch=self._watch,
                prelude=PRELUDE,
                names={
                    "_tritonprobe_hot": self._counts.hot,
                    "_tritonprobe_miss": self._counts.miss,
                    "_tritonprobe_trial": self._counts.trial,
                },
            )
        except RewriteError as error:
            log.warning("tritonprobe: wrapping CachingAutotuner.run, dearer by about 0.6 us a launch: %s", error)
            run = wrapped(original, raised=self._raised, ended=self._ended, watch=self._watch, first=self._counted)
        self._calls.guarded[run.__code__] = "self"
        return run

    def _counted(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the prelude does."""
        (self._counts.trial if kwargs.get("benchmark_run") else self._counts.miss)(autotuner, args)

    def _raised(self, autotuner: Any) -> None:
        """An exception passes through a launch. Counts it; never raises, never keeps it."""
        try:
            error = sys.exc_info()[1]
            site = self._counts.site(autotuner) if self._enabled() else None
            if error is None or site is None:
                return
            names = sys._getframe(1).f_locals
            mode = mode_of(names)
            if not autotuner.launchers:
                self._counts.failed(site, names.get("args"))
            if mode == "launch":
                self._launches.observe_error(error)
            name = type(error).__name__
            call = self._calls.current
            if call is not None and call.frame is sys._getframe(1):
                call.error = name
            self._publish(LaunchError(site.name, name, mode))
        except Exception:
            self._registry.fault("inductor")

    def _ended(self, autotuner: Any) -> None:  # a guard hands its function's self over
        frame = sys._getframe(1)
        if mode_of(frame.f_locals) == "launch":
            self._launches.ends.add()
        self._calls.end_of(frame)
