"""The adapter as a whole: installs every patch or none, and takes all of them back."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter import device
from tritonprobe.adapter.binder import Binders
from tritonprobe.adapter.calls import Calls, OpenCall
from tritonprobe.adapter.census import CensusRecorder
from tritonprobe.adapter.ends import Watch
from tritonprobe.adapter.gputime import GpuWatch
from tritonprobe.adapter.hosttime import HostTime
from tritonprobe.adapter.inductor import Inductor
from tritonprobe.adapter.interpreter import Interpreted
from tritonprobe.adapter.kernels import jit_function
from tritonprobe.adapter.launches import Launches
from tritonprobe.adapter.parsing import Parsing
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.phases import Phases
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.rewrite import CELLS
from tritonprobe.adapter.tuning import Tunings
from tritonprobe.adapter.windows import LaunchWindows
from tritonprobe.ledger.store import Ledger
from tritonprobe.model import ColdCall, LaunchError
from tritonprobe.settings import Settings
from tritonprobe.shapes.buckets import BucketSpec

log = logging.getLogger("tritonprobe")

OLDEST = (3, 6)
NEWEST_KNOWN = (3, 9)


class UnsupportedTriton(RuntimeError):  # noqa: N818  # it reads as what it says
    """This Triton, or this Python, cannot be probed; the message says which can."""


def check_version(version: str) -> None:
    """Raises UnsupportedTriton below 3.6; warns above what was tried."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if found < OLDEST:
        raise UnsupportedTriton(
            f"tritonprobe needs triton 3.6 or newer, and this process has {version}: "
            "pip install 'triton>=3.6' (with torch: 2.9 or newer)"
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Without the interpreter lock an increment may be lost: no count rather than a wrong one.
        raise UnsupportedTriton("tritonprobe needs the interpreter lock: run a free-threaded Python with PYTHON_GIL=1")
    if found > NEWEST_KNOWN:
        log.warning("tritonprobe: triton %s is newer than the newest tried, 3.9; every patch checks itself", version)


class Adapter:
    """One process's hold on Triton. Making one raises SettingError if ``settings.device`` cannot be used."""

    def __init__(
        self,
        ledger: Ledger,
        fault: Callable[[str], None],
        settings: Settings,
        opened: Callable[[OpenCall], None],
        closed: Callable[[ColdCall], None],
        publish: Callable[[LaunchError], None],
        is_ready: Callable[[], bool] = lambda: False,
    ) -> None:
        self.registry = Registry(ledger, fault, settings.buckets_per_kernel)
        self._watch = Watch()
        self._patches = Patches()
        self.parsing = Parsing()
        self._arch = None if settings.device is None else device.parse_device(settings.device)
        self._restore_device: Callable[[], None] | None = None
        self._on = False
        self._ever = False
        self._lock = threading.RLock()
        self.calls = Calls(opened, closed, self._watch)
        self.census = CensusRecorder(self.registry)
        self.launches = Launches(self.registry, self.calls, self._watch, publish, self._enabled)
        self._binders = Binders(self.registry, self.calls, self._enabled)
        self._phases = Phases(self.registry, self.calls, self._enabled, self._binders.choose_again, self.census)
        self._tunings = Tunings(
            self.registry, self.calls, self._watch, self._enabled, lambda: not device.is_compile_only(), self.census
        )
        self._interpreted = Interpreted(self.registry, publish, self._enabled)
        self.windows = LaunchWindows(fault, lambda: self.registry.thread.trials > 0)
        self._phases.loaded = self._binders.loaded = self.windows.note
        self.host_time = HostTime(ledger, fault, settings.host_windows, self.windows)
        self.gpu: GpuWatch | None = None
        if settings.gpu_windows != "off":
            self.gpu = GpuWatch(ledger, fault, self.windows, is_ready, graphs_too=settings.gpu_windows == "graphs")
        _living.add(self)
        self._inductor = Inductor(
            self.registry,
            self.calls,
            self.launches,
            self._phases,
            self._watch.any,
            publish,
            self._enabled,
            lambda: not device.is_compile_only(),
        )

    def _enabled(self) -> bool:
        return self._on

    @property
    def is_on(self) -> bool:
        """Whether Triton is patched now."""
        return self._on

    def install(self) -> None:
        """Patches Triton, once, and makes the settings' device the active one.

        Raises UnsupportedTriton, or whatever a patch met, with nothing left behind.
        """
        import triton

        with self._lock:
            if self._on:
                return
            check_version(triton.__version__)
            try:
                self.launches.install(self._patches)
                self._binders.install(self._patches, self._phases.process_init)
                self._phases.install(self._patches)
                self._tunings.install(self._patches)
                self._interpreted.install(self._patches)
                self._inductor.install()
            except BaseException:
                self._inductor.remove()
                self._patches.undo()
                raise
            # Whoever chose a compile-only device in code, or by --target, means it, whatever the setting says.
            if self._arch is not None and self._restore_device is None and not device.is_compile_only():
                self._restore_device = device.activate(self._arch)
            self._on = self._ever = True
            self.host_time.start()
            if self.gpu is not None:
                self.gpu.install()

    def install_once(self) -> None:
        """For ops: patches Triton unless that was done before. After `uninstall` it stays away."""
        if not self._ever:
            self.install()

    def uninstall(self, keep_device: bool = False) -> list[str]:
        """Takes every patch back and gives every kernel its own binder; the settings' device goes as well, or stays.

        Returns the names that somebody else had wrapped: ours pass through underneath.
        """
        with self._lock:
            left = self._take_back() if self._on else []
            if self._restore_device is not None and not keep_device:  # it may have been kept before
                self._restore_device()
                self._restore_device = None
            return left

    def _take_back(self) -> list[str]:
        self._on = False
        self.host_time.stop()
        left = [] if self.gpu is None else self.gpu.remove()
        self.windows.close_all()
        self._binders.remove()
        left += [*self._inductor.remove(), *self._patches.undo()]
        if left:
            log.warning("tritonprobe: %s were wrapped by somebody and pass through now", ", ".join(left))
        self.registry.forget_sites()
        return left

    def process_init(self, backend: Any) -> None:
        """Does the process's one-time work now, unless it is done."""
        self._phases.process_init(backend)

    def watch_everything(self) -> None:
        with self._lock:
            self.registry.everything = True
            self._inductor.refresh()
            self._binders.adopt()

    def adopt(self) -> None:
        """Watches what was probed, and launched while nothing was installed."""
        with self._lock:
            self._binders.adopt()

    def watch_probed_only(self) -> None:
        self.registry.everything = False
        self._inductor.refresh()

    def probe(self, kernel: Any, spec: BucketSpec | None) -> None:
        """Watches one kernel, given as any of Triton's kernel objects. Raises TypeError on anything else."""
        jit = jit_function(kernel)
        with self._lock:
            self.registry.probe(jit, spec)
            self._inductor.refresh()
            if self._on and hasattr(jit, "device_caches"):
                self._binders.adopt_one(jit)
                site = self.registry.site(jit)
                if site is not None and site.shape is None:  # it may have been counted before, by another spec
                    self._binders.choose_again(site)

    @property
    def counting(self) -> str:
        """How launches are counted now: ``native``, ``inline``, ``pre_run_hook``, or ``none`` yet."""
        strategies = {site.strategy for site in self.registry.sites() if site.strategy}
        return "+".join(sorted(strategies)) or "none"

    def forked(self) -> None:
        """In a forked child: locks that other threads held are free, and what those threads had begun is over."""
        self._lock = threading.RLock()
        # The forking thread's own cold call and ops go on, the others' are gone with their threads.
        self._watch.restart(self.launches.ends.ops_in_c())
        self.registry.forked(CELLS)


_living: weakref.WeakSet[Adapter] = weakref.WeakSet()


def _after_fork() -> None:
    for adapter in list(_living):
        adapter.forked()


os.register_at_fork(after_in_child=_after_fork)
