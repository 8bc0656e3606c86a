"""The ends of launch calls: `JITFunction.run` and `Autotuner.run` with a guard around their bodies.

The guard costs a few nanoseconds (`rewrite.guard`): it tells of exceptions, which are counted and go on unchanged,
and of the end of a call while a cold call or an op is under way. ``run(warmup=True)`` branches off first, so that
warm-ups are counted apart.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tritonprobe.adapter.calls import Calls
from tritonprobe.adapter.ends import Ends, Watch
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.rewrite import BINDER_FILE, CELLS, RewriteError, guard, wrapped
from tritonprobe.adapter.sites import Site
from tritonprobe.adapter.trial_stacks import trial_code
from tritonprobe.model import LaunchError, Mode

log = logging.getLogger("tritonprobe")


class _Thread(threading.local):
    error: BaseException | None = None  # of the last launch that raised in an op


class Launches:
    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        watch: Watch,
        publish: Callable[[LaunchError], None],
        enabled: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._watch = watch
        self.ends = Ends(watch, self._ended)
        self._publish = publish
        self._enabled = enabled
        self._thread = _Thread()
        self._original: Any = None
        calls.name_of = self._call_of

    def install(self, patches: Patches) -> None:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        patches.replace(JITFunction, "run", self._guarded_run)
        patches.replace(Autotuner, "run", self._guarded_tuner)
        self._calls.guarded[Launches._warm.__code__] = "kernel"

    def failed_first(self, error: BaseException, before: int) -> bool:
        """Whether `error` is that of a launch of this thread, and none came back since these were `before`."""
        return error is self._thread.error and self.ends.came_back() <= before

    def forget_error(self) -> None:
        """The op is over: else its frame, the exception and its traceback would hold each other, and the tensors."""
        self._thread.error = None

    def observe_error(self, error: BaseException, counted: bool = True) -> None:
        """A launch of this thread raises. `counted`: it comes to an end that counts."""
        if self._watch.ops and self.ends.ops():
            self.ends.add_raised(counted)
            self._thread.error = error

    def _guarded_run(self, original: Any) -> Any:
        self._original = original
        # A direct `run(warmup=True)` is a warm-up too, so it is seen here and not in `warmup`.
        prelude = "if warmup: return _tritonprobe_warm(self, args, grid, kwargs)"
        try:
            run = guard(
                original,
                raised=self._raised,
                ended=self.ends.ended,
                watch=self._watch.any,
                prelude=prelude,
                names={"_tritonprobe_warm": self._warm},
            )
        except RewriteError as error:
            log.warning("tritonprobe: wrapping JITFunction.run, dearer by about 0.6 us a launch: %s", error)
            run = wrapped(
                original, raised=self._raised, ended=self.ends.ended, watch=self._watch.any, first=self._warm_first
            )
        self._calls.guarded[run.__code__] = "self"
        return run

    def _warm_first(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """What the prelude does."""
        if not kwargs.get("warmup"):
            return None
        rest = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        return (self._warm(kernel, args, kwargs.get("grid"), rest),)

    def _guarded_tuner(self, original: Any) -> Any:
        try:
            run = guard(original, raised=self._tuner_raised, ended=self._tuner_ended, watch=self._watch.slow)
        except RewriteError as error:
            log.warning("tritonprobe: wrapping Autotuner.run: %s", error)
            run = wrapped(original, raised=self._tuner_raised, ended=self._tuner_ended, watch=self._watch.slow)
        self._calls.guarded[run.__code__] = "self"
        return run

    def _warm(self, kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> Any:
        """``run(warmup=True)``: Triton's own `run`, counted as a warm-up, with a cold call of its own."""
        site = self._registry.site(kernel) if self._enabled() else None
        if site is None:
            return self._original(kernel, *args, grid=grid, warmup=True, **kwargs)
        # An autotuner's trial may warm up too; it stays a trial.
        mode: Mode = "trial" if site.mode == "trial" else "warmup"
        with site.session(mode, CELLS):
            try:
                return self._original(kernel, *args, grid=grid, warmup=True, **kwargs)
            except BaseException:
                self._raised(kernel)
                raise
            finally:
                self._calls.end_of(sys._getframe())

    def _call_of(self, holder: Any) -> tuple[str, Mode] | None:
        """The kernel's name and what the call is for, from the object whose guarded function runs."""
        jit = jit_function(holder)
        site = self._registry.site(jit) if jit is not None else None
        return None if site is None else (site.name, site.mode)

    def _raised(self, kernel: Any) -> None:
        """An exception passes through a launch of `kernel`. Counts it; never raises, never keeps it."""
        try:
            if not self._enabled():
                return
            error = sys.exc_info()[1]
            if error is None:
                return
            site = self._registry.site(kernel)
            if self._is_launch(site):
                self.observe_error(error)
            if site is None:
                return
            mode = site.mode
            found = _how_far(error, site)
            if not found.counted:
                site.count_unbound()
            elif not found.variant:
                site.count_failed(site.bucket(found.values))
            name = type(error).__name__
            call = self._calls.current
            if call is not None and mode == "trial":
                call.trial_error = name
            elif call is not None and call.frame is sys._getframe(1):  # another's may be caught on its way
                call.error = name
            self._publish(LaunchError(site.name, name, mode))
        except Exception:
            self._registry.fault("launches")

    def _ended(self, kernel: Any, frame: FrameType) -> None:
        """The end of a launch while a cold call or a trial is under way, on whichever thread."""
        thread = self._registry.thread
        # The site is asked for only where the thread has something other than launches under way.
        if thread.trials == 0 and (thread.mode == "launch" or self._is_launch(self._registry.site(kernel))):
            self.ends.add()
        if self._calls.current is not None:
            self._calls.end_of(frame)

    def _is_launch(self, site: Site | None) -> bool:
        """Whether an op counts this call: trials and warm-ups may come before a fallback, of unwatched kernels too."""
        return self._registry.thread.trials == 0 and (site is None or site.mode == "launch")

    def _tuner_raised(self, tuner: Any) -> None:
        """Tuning itself failed (no config left, an error in a trial): a launch call that never came to a launch."""
        try:
            error = sys.exc_info()[1]
            if error is None or not self._enabled():
                return
            call = self._calls.current
            if call is not None and call.frame is sys._getframe(1):
                call.error = type(error).__name__
            if _came_through_a_launch(error):
                return  # and was counted there
            if self._registry.thread.trials == 0:
                self.observe_error(error, counted=False)
            jit = jit_function(tuner)
            site = self._registry.site(jit) if jit is not None else None
            if site is None or site.mode != "launch":
                return
            site.count_unbound()
            self._publish(LaunchError(site.name, type(error).__name__, "launch"))
        except Exception:
            self._registry.fault("launches")

    def _tuner_ended(self, tuner: Any) -> None:  # a guard hands its function's self over
        self._calls.end_of(sys._getframe(1))


def _came_through_a_launch(error: BaseException) -> bool:
    """Whether the exception rose from a launch that was no trial: the tuner's own launch after it had a winner."""
    trace, launched = error.__traceback__, False
    while trace is not None:
        if trace.tb_frame.f_code is trial_code():
            return False
        # Triton's `run` and no other function has this argument beside a kernel's.
        launched = launched or {"self", "grid", "warmup"} <= trace.tb_frame.f_locals.keys()
        trace = trace.tb_next
    return launched


@dataclass(slots=True)
class _HowFar:
    """How far a call had come when it raised, read from Triton's local names along the traceback."""

    counted: bool = False  # its binder, which counts first, was entered
    variant: bool = False  # a variant had been found for it
    values: Mapping[str, Any] = field(default_factory=dict)  # its arguments, as far as they were bound


def _how_far(error: BaseException, site: Site) -> _HowFar:
    found = _HowFar()
    trace = error.__traceback__
    while trace is not None:
        frame: FrameType = trace.tb_frame
        names = frame.f_locals
        if frame.f_code.co_filename == BINDER_FILE:
            found.counted, found.values = True, names
        elif "kernel_key_cache" in names:  # JITFunction.run
            if "bound_args" in names:
                found.counted, found.values = True, names["bound_args"]
            elif site.strategy == "pre_run_hook":
                found.counted = True
            found.variant = names.get("kernel") is not None
        trace = trace.tb_next
    return found
