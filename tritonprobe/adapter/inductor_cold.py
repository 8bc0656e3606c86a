"""The cold calls of TorchInductor's kernels. Touches `CachingAutotuner`'s cold methods and its results.

Inductor compiles when `torch.compile` does, long before a launch: a kernel's cold call then begins with the wait for it
(in this process: with its precompilation) and ends when it can be launched. What it tunes or compiles later, in
`CachingAutotuner.run`, is a cold call of that launch. Triton's own compiler runs underneath, so its phases are those of
`phases`. What its worker processes compile has one phase for all of that (`inductor_workers`).
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from tritonprobe.adapter.calls import UNKNOWN_BUCKET, Calls, OpenCall
from tritonprobe.adapter.inductor_counts import InductorCounts, InductorSite, mode_of
from tritonprobe.adapter.inductor_workers import KIND, InductorWorkers
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.phases import Phases
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.tuning import MAX_TRIALS
from tritonprobe.ledger.store import Cell
from tritonprobe.model import Tier, Trial, TrialOutcome, Tuning

COMPILED_HERE = "compiled by Inductor in this process"
FOUND_HERE = "found in Triton's disk cache by Inductor"
FROM_FX_CACHE = "loaded from Inductor's cache of compiled graphs"


class _Session:
    """One autotuner benchmarking its configurations."""

    def __init__(self, autotuner: Any, key: str) -> None:
        self.autotuner = autotuner
        self.key = key
        self.start = self.end = time.monotonic_ns()
        self.trials: list[Trial] = []

    def result(self) -> Tuning:
        launchers = self.autotuner.launchers
        return Tuning(
            key=self.key,
            trials=tuple(self.trials),
            pruned=0,
            winner=str(launchers[0].config) if len(launchers) == 1 else None,
            from_disk=False,
            wall_ns=self.end - self.start,
        )


class _Thread(threading.local):
    trials: Cell | None = None  # where the benchmark under way counts its launches


class InductorCold:
    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        counts: InductorCounts,
        workers: InductorWorkers,
        phases: Phases,
        enabled: Callable[[], bool],
        measures: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._counts = counts
        self._workers = workers
        self._phases = phases
        self._enabled = enabled
        self._measures = measures
        self._thread = _Thread()

    def install(self, patches: Patches, heuristics: Any) -> None:
        """Patches `torch._inductor.runtime.triton_heuristics`."""
        autotuner = heuristics.CachingAutotuner
        patches.replace(autotuner, "precompile", self._precompile)
        patches.replace(autotuner, "_precompile_config", self._precompile_config)
        patches.replace(autotuner, "_make_launchers", self._calls.timed("launcher_build"))
        for tuning in ("autotune_to_one_config", "_coordinate_descent_tuning", "_combo_sequential_autotune"):
            if hasattr(autotuner, tuning):  # the last is new in torch 2.13
                patches.replace(autotuner, tuning, self._tune)
        patches.replace(autotuner, "bench", self._bench)
        patches.replace(autotuner, "maybe_clone_args", self._maybe_clone_args)
        static = heuristics.StaticTritonCompileResult
        patches.replace(static, "can_statically_launch", self._calls.timed("launcher_build"))
        kernel = heuristics.StaticallyLaunchedCudaKernel
        # From torch 2.11 on it shares its loading with other devices' kernels.
        owner = next(cls for cls in kernel.__mro__ if "load_kernel" in vars(cls))
        patches.replace(owner, "load_kernel", self._calls.timed("module_load"))

    @contextmanager
    def _cold(self, autotuner: Any) -> Iterator[OpenCall | None]:
        """This thread's cold call, begun if need be; None if the autotuner's kernel is not watched."""
        site = self._counts.site(autotuner) if self._enabled() else None
        call, ours = self._calls.begin(site.name) if site is not None else (None, False)
        if call is None or site is None:
            yield None
            return
        self._describe(call, site)
        try:
            yield call
        except BaseException as error:
            if ours:
                call.error = type(error).__name__
            raise
        finally:
            if ours:
                self._calls.close(call)
            elif not call.stack and call.frame is not None and call.kind == KIND:
                call.enter("first_launch")  # until the launch that holds the call returns

    def _describe(self, call: OpenCall, site: InductorSite) -> None:
        """Makes a call that has just begun one of Inductor's."""
        try:
            if call.kind == KIND and self._workers.waiting:
                call.kernel = site.name  # the future knew a name only
            if call.kernel == site.name and call.kind != KIND:
                call.kind = KIND
                if call.frame is not None and "args" in call.frame.f_locals:
                    call.bucket = site.bucket(call.frame.f_locals["args"])
                    call.mode = mode_of(call.frame.f_locals)
        except Exception:
            self._registry.fault("inductor")

    def _precompile(self, original: Any) -> Any:
        @functools.wraps(original)
        def precompile(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
            if autotuner.launchers:
                return original(autotuner, *args, **kwargs)  # nothing is left to be done
            with self._cold(autotuner) as call:
                if call is None:
                    return original(autotuner, *args, **kwargs)
                held = list(autotuner.compile_results)
                depth = call.enter("lookup")  # and the wait for another thread that compiles it
                try:
                    self._arrived(call, autotuner, held)
                    return original(autotuner, *args, **kwargs)
                finally:
                    call.leave(depth)

        return precompile

    def _arrived(self, call: OpenCall, autotuner: Any, held: list[Any]) -> None:
        """Counts the variants that an autotuner came with: from a worker process, or from a cached graph."""
        try:
            for result in held:
                digest = result.kernel.hash
                tier, reason = self._workers.told(autotuner, digest) or ("disk", FROM_FX_CACHE)
                self._found(call, autotuner, tier, digest, reason)
        except Exception:
            self._registry.fault("inductor")

    def _precompile_config(self, original: Any) -> Any:
        @functools.wraps(original)
        def precompile_config(autotuner: Any, config: Any) -> Any:
            with self._cold(autotuner) as call:
                if call is None:
                    return original(autotuner, config)
                self._process_init(autotuner)
                depth = call.enter("lookup")
                call.tier = "disk"
                try:
                    result = original(autotuner, config)
                finally:
                    call.leave(depth)
                found = cast(Tier, call.tier)  # Triton's compiler may have changed it
                reason = COMPILED_HERE if found == "compile" else FOUND_HERE
                self._found(call, autotuner, found, result.kernel.hash, reason)
                return result

        return precompile_config

    def _found(self, call: OpenCall, autotuner: Any, tier: Tier, digest: str, reason: str) -> None:
        try:
            site = self._counts.site(autotuner)
            if site is None:
                return
            call.found(site.name, call.bucket or UNKNOWN_BUCKET, tier)
            self._phases.count_variant(call, site.name, digest)
            if call.kernel == site.name and reason not in call.reasons:
                call.reasons = (*call.reasons, reason)
        except Exception:
            self._registry.fault("inductor")

    def _process_init(self, autotuner: Any) -> None:
        try:
            from triton.backends.compiler import GPUTarget
            from triton.compiler.compiler import make_backend

            device = autotuner.device_props
            self._phases.process_init(make_backend(GPUTarget(device.type, device.cc, device.warp_size or 32)))
        except Exception:
            self._registry.fault("inductor")

    def _tune(self, original: Any) -> Any:
        @functools.wraps(original)
        def tune(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
            with self._cold(autotuner) as call:
                if call is None:
                    return original(autotuner, *args, **kwargs)
                session = call.session
                if session is None:
                    session = call.session = _Session(autotuner, call.bucket or UNKNOWN_BUCKET)
                    call.reasons = (*call.reasons, f"no winner yet among {len(autotuner.launchers)} configurations")
                depth = call.enter("autotune")
                try:
                    return original(autotuner, *args, **kwargs)
                finally:
                    call.leave(depth)
                    session.end = time.monotonic_ns()

        return tune

    def _bench(self, original: Any) -> Any:
        @functools.wraps(original)
        def bench(autotuner: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
            before, start = self._thread.trials, time.monotonic_ns()
            try:
                self._thread.trials = self._counts.trial_cell(autotuner, args) if self._enabled() else None
            except Exception:
                self._registry.fault("inductor")
            try:
                milliseconds = original(autotuner, launcher, *args, **kwargs)
            finally:
                self._thread.trials = before
            try:
                call = self._calls.current
                if call is not None and isinstance(call.session, _Session) and call.session.autotuner is autotuner:
                    self._record(call.session, autotuner, launcher, milliseconds, start)
            except Exception:
                self._registry.fault("inductor")
            return milliseconds

        return bench

    def _record(self, session: _Session, autotuner: Any, launcher: Any, milliseconds: float, start: int) -> None:
        outcome: TrialOutcome = "ok"
        if not math.isfinite(milliseconds):
            # Inductor doesn't run a kernel of its own that spills registers; infinity is also an invalid configuration.
            spilt = not autotuner.custom_kernel and (launcher.n_spills or 0) > 0
            outcome = "out_of_resources" if spilt else "error"
        seconds = milliseconds / 1e3 if outcome == "ok" and self._measures() else None
        session.end = time.monotonic_ns()
        if len(session.trials) < MAX_TRIALS:
            session.trials.append(Trial(str(launcher.config), outcome, seconds, session.end - start))

    def _maybe_clone_args(self, original: Any) -> Any:
        """Inductor calls this once for each launch of a benchmark."""
        thread = self._thread

        @functools.wraps(original)
        def maybe_clone_args(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
            cell = thread.trials
            if cell is not None:
                cell[0] += 1
            return original(autotuner, *args, **kwargs)

        return maybe_clone_args
