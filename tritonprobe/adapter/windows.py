"""Windows in which every launch is seen where it leaves Triton: grid, stream, bucket, order and host time.

In a window each loaded `CompiledKernel` gets a `_run` of ours in place of Triton's launcher (Triton reads that
attribute for every launch), and afterwards its own back. Outside of windows nothing is left on the launch path, and a
`_run` that somebody kept passes launches through. Nothing is synchronised, and nothing is asked of the GPU.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from itertools import count
from operator import itemgetter
from types import FrameType
from typing import Any

from tritonprobe.adapter import stacks
from tritonprobe.adapter.calls import UNKNOWN_BUCKET
from tritonprobe.adapter.sites import Shape, Site
from tritonprobe.requests.threads import this_thread
from tritonprobe.seen import Around, Label, Seen, Sink

log = logging.getLogger("tritonprobe")

MAX_KERNELS = 4096  # binaries that windows look at; those loaded later are not seen
_LEADING = 9  # the launcher's own arguments, before the kernel's
_LAUNCHING = ("triton/runtime/jit.py", "triton/compiler/compiler.py")
_POLL_SECONDS = 0.0005
_FRAMES = 64  # of a stack that are looked at


class Binary:
    """One loaded binary of a watched kernel, and our stand-in for its launcher. See `seen.Binary`."""

    __slots__ = ("_key_of", "_shape", "ctas", "kernel", "kernel_name", "launcher", "name", "ours", "site")

    def __init__(self, kernel: Any, site: Site) -> None:
        self.kernel = weakref.ref(kernel)
        self.site = site
        self.name = str(kernel.name)
        self.kernel_name = site.name
        self.ctas = int(getattr(kernel.metadata, "num_ctas", 1) or 1)
        self.launcher: Any = None
        self.ours: Any = None
        self._shape: Shape | None = None
        self._key_of: Any = None

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """What decides the bucket, from a launcher's arguments: the kernel's dimensions and their values."""
        shape = self.site.shape
        if shape is None or len(args) != _LEADING + len(self.site.params):
            return None
        if shape is not self._shape:
            places = [_LEADING + self.site.params.index(dim) for dim in shape.dims]
            self._key_of = itemgetter(*places) if places else _nothing
            self._shape = shape
        return shape, self._key_of(args)

    def label(self, key: Any) -> Label:
        return self.site.name, UNKNOWN_BUCKET if key is None else self.site.bucket_of(*key)


class LaunchWindows:
    """See `seen.LaunchSource`. ``trials()`` says whether this thread's launches are an autotuner's trials."""

    def __init__(self, fault: Callable[[str], None], trials: Callable[[], bool]) -> None:
        self._fault = fault
        self._trials = trials
        self._binaries: dict[int, Binary] = {}
        self._swapped: list[Binary] = []
        self._sinks: tuple[Sink, ...] = ()
        self._around: tuple[Around, Sink] | None = None
        self._edges: list[Callable[[], None]] = []  # what is to be done between two launches
        self._under_way: dict[int, None] = {}  # launches that were not told of yet, by their place in the order
        self._lock = threading.RLock()
        self.tick: Callable[[], int] = count(1).__next__
        _living.add(self)

    def note(self, kernel: Any, site: Site) -> None:
        """A binary was loaded: windows see its launches from now on."""
        key = id(kernel)
        with self._lock:
            known = self._binaries.get(key)
            if known is not None and known.kernel() is kernel:
                return
            if len(self._binaries) >= MAX_KERNELS:
                # No callbacks: they would run Python inside any collection.
                self._binaries = {i: found for i, found in self._binaries.items() if found.kernel() is not None}
                if len(self._binaries) >= MAX_KERNELS:
                    return
            binary = self._binaries[key] = Binary(kernel, site)
            if self._sinks:
                self._swap(binary)

    def open(self, sink: Sink, around: Around | None = None) -> None:
        with self._lock:
            first = not self._sinks
            self._sinks = (*self._sinks, sink)
            if around is not None:
                self._around = (around, sink)
            if first:
                for binary in list(self._binaries.values()):
                    self._swap(binary)

    def close(self, sink: Sink) -> None:
        with self._lock:
            self._sinks = tuple(s for s in self._sinks if s != sink)
            if self._around is not None and self._around[1] == sink:
                self._around = None
            if not self._sinks:
                self._restore()

    def close_all(self) -> None:
        """Every kernel has its own launcher again, and no binary is known any more."""
        with self._lock:
            self._sinks, self._around = (), None
            self._restore()
            self._binaries.clear()

    def settle(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        # The frames themselves: one that begins from now on reads our launcher.
        pending = {thread: _unseen(frame) for thread, frame in stacks.others().items()}
        while True:
            now = stacks.others()
            pending = {t: f for t, f in pending.items() if f is not None and _unseen(now.get(t)) is f}
            if not pending:
                return True
            if time.monotonic() > deadline:
                return False
            del now
            time.sleep(_POLL_SECONDS)

    def drained(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        pending = set(self._under_way)
        while pending := pending & self._under_way.keys():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def at_gap(self, act: Callable[[], None], seconds: float) -> bool:
        done = threading.Event()

        def once() -> None:
            try:
                act()
            finally:
                done.set()

        self._edges.append(once)
        if done.wait(seconds):
            return True
        try:
            self._edges.remove(once)
        except ValueError:  # a launching thread has just taken it
            done.wait(1.0)
            return True
        gap = not self._under_way
        act()
        return gap

    def _swap(self, binary: Binary) -> None:
        kernel = binary.kernel()
        if kernel is None or kernel._run is None or kernel._run is binary.ours:
            return
        launcher = kernel._run
        if launcher is not binary.launcher:
            binary.launcher, binary.ours = launcher, self._seen(launcher, binary)
        kernel._run = binary.ours
        self._swapped.append(binary)

    def _restore(self) -> None:
        while self._swapped:
            binary = self._swapped.pop()
            kernel = binary.kernel()
            if kernel is not None and kernel._run is binary.ours:
                kernel._run = binary.launcher

    def _seen(self, launcher: Any, binary: Binary) -> Any:
        tick, clock, trials = self.tick, time.perf_counter_ns, self._trials
        under_way, edges = self._under_way, self._edges

        def launch(*args: Any) -> Any:
            sinks = self._sinks
            if not sinks:
                return launcher(*args)
            if edges and not under_way:
                self._draw_edge()
            around = self._around
            mark = None if around is None else around[0].before(args[3])
            before = tick()
            under_way[before] = None
            returned = False
            start = 0
            try:
                start = clock()  # inside, so that an interrupt leaves no launch under way
                result = launcher(*args)
                returned = True
                return result
            finally:
                try:
                    end = clock()
                    after = tick()
                    if mark is not None and around is not None:
                        around[0].after(mark)
                    self._tell(sinks, binary, args, (before, after, start, end, returned, trials(), mark))
                finally:
                    under_way.pop(before, None)

        # Some read a launcher's attributes (its scratch sizes, its C function).
        launch.__dict__.update(getattr(launcher, "__dict__", {}))
        return launch

    def _tell(self, sinks: tuple[Sink, ...], binary: Binary, args: tuple[Any, ...], rest: tuple[Any, ...]) -> None:
        try:
            seen = tuple.__new__(Seen, (binary, args[:4], binary.key(args), *rest, this_thread()))
            for sink in sinks:
                sink(seen)
        except Exception:
            self._fault("windows")

    def _draw_edge(self) -> None:
        try:
            self._edges.pop()()
        except IndexError:
            return  # another thread was faster
        except Exception:
            self._fault("windows")

    def forked(self) -> None:
        """The child may have been forked inside a window, and has none of its parent's other threads."""
        self._lock = threading.RLock()
        self._edges.clear()
        self._under_way.clear()
        self._sinks, self._around = (), None
        self._restore()


def _nothing(args: tuple[Any, ...]) -> None:
    """The key of a kernel whose buckets depend on no argument."""


def _unseen(frame: FrameType | None) -> FrameType | None:
    """The frame of a launch that may be on its way into a launcher that it read before it was swapped."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name == "launch" and code.co_filename == __file__:
            return None
        if (
            code.co_name in ("run", "runner")
            and code.co_filename.replace(os.sep, "/").endswith(_LAUNCHING)
            and "launch_metadata" in frame.f_locals
        ):
            return frame
        frame = frame.f_back
    return None


_living: weakref.WeakSet[LaunchWindows] = weakref.WeakSet()


def _after_fork() -> None:
    for windows in list(_living):
        windows.forked()


os.register_at_fork(after_in_child=_after_fork)
