"""Captures of CUDA graphs: what is launched while one is under way, and that nothing of ours is on meanwhile.

Touches `torch.cuda.CUDAGraph.capture_begin`, `capture_end` and `reset`, once torch.cuda.graphs is imported, and opens a
launch window for as long as a capture lasts. Nothing is left on a replay, and no graph is held.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tritonprobe.adapter.late_import import LateImport
from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.windows import LaunchWindows
from tritonprobe.seen import CAPTURE, FIRST_CAPTURE, Label, Seen

log = logging.getLogger("tritonprobe")

GRAPHS = "torch.cuda.graphs"
MAX_LAUNCHES = 200_000  # kept of one capture
MAX_LIVES = 8192  # graphs of which we would notice that they are captured into again

Launch = tuple[tuple[str, int], Label]
"""The function's name and its grid as one number; kernel and bucket."""


class _Life:
    """Whether what was captured into a graph's object is there still: the object is, and was not emptied since."""

    def __init__(self, graph: Any) -> None:
        self.graph: Callable[[], Any] = weakref.ref(graph)
        self.is_over = False

    def __call__(self) -> bool:
        return not self.is_over and self.graph() is not None


class Captures:
    """``begins`` and ``ends`` are told of each capture, ``captured`` of the launches in it.

    Where these are not known, ``not_captured`` is told why: ``mixed``, ``large``.
    """

    def __init__(
        self,
        windows: LaunchWindows,
        begins: Callable[[str], None],
        ends: Callable[[str], None],
        captured: Callable[[list[Launch], Callable[[], bool]], None],
        not_captured: Callable[[str], None],
        fault: Callable[[str], None],
    ) -> None:
        self._windows = windows
        self._begins = begins
        self._ends = ends
        self._captured = captured
        self._not_captured = not_captured
        self._fault = fault
        self._patches = Patches()
        self._late: LateImport | None = None
        self._under_way: dict[int, list[Seen]] = {}  # by the graph's id
        self._lives: dict[int, _Life] = {}  # by the graph's id
        self._mixed = False  # two captures at once: nobody knows which launch was in which
        self._is_capturing: Callable[[], bool] = lambda: False
        self._lock = threading.RLock()
        self._told: list[str] = []  # what `begins` was told of captures under way
        self._graphs = False  # there are some, or there were
        self._unwatched = False  # there may be some from before

    def install(self) -> None:
        cuda = sys.modules.get("torch.cuda")
        self._unwatched = cuda is not None and bool(cuda.is_initialized())
        self._late = LateImport(GRAPHS, self._patch)
        self._late.wait()

    def remove(self) -> list[str]:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        with self._lock:
            while self._told:
                self._ends(self._told.pop())
            self._under_way.clear()
            self._windows.close(self._see)
        return self._patches.undo()

    def are_there_graphs(self) -> bool:
        """Whether this process has a graph of torch's, or had one while we watched."""
        if self._unwatched and not self._graphs:
            from tritonprobe.gpu import torch_graphs

            self._graphs = torch_graphs.are_there_any()
        self._unwatched = False
        return self._graphs

    def _patch(self, module: ModuleType) -> None:
        try:
            self._is_capturing = module.is_current_stream_capturing
            self._patches.replace(module.CUDAGraph, "capture_begin", self._capture_begin)
            self._patches.replace(module.CUDAGraph, "capture_end", self._capture_end)
            self._patches.replace(module.CUDAGraph, "reset", self._reset)
        except AttributeError as error:
            self._patches.undo()
            log.warning("tritonprobe: this torch's CUDA graphs are not watched: %r", error)

    def _capture_begin(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            is_first = id(graph) not in self._under_way  # else torch refuses, and goes on with the one under way
            if is_first:
                self._begin(graph)
            try:
                result = original(graph, *args, **kwargs)
            except BaseException:
                if is_first:
                    self._end(graph, finished=False)
                raise
            self._emptied(graph)
            self._under_way.get(id(graph), []).clear()  # of an object that was here before, and never came to its end
            return result

        return capture_begin

    def _capture_end(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            finished = False
            try:
                result = original(graph, *args, **kwargs)
                finished = True
                return result
            finally:
                self._end(graph, finished)

        return capture_end

    def _reset(self, original: Any) -> Any:
        @functools.wraps(original)
        def reset(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            self._emptied(graph)
            return result

        return reset

    def _begin(self, graph: Any) -> None:
        try:
            with self._lock:
                what = CAPTURE if self._graphs else FIRST_CAPTURE
                self._told.append(what)  # first: what has begun will end, also if telling of it fails
                self._mixed = bool(self._under_way)
                self._under_way[id(graph)] = []
                try:
                    self._begins(what)
                finally:
                    self._graphs = True
                if len(self._under_way) == 1:
                    self._windows.open(self._see)
        except Exception:
            self._fault("captures")

    def _end(self, graph: Any, finished: bool) -> None:
        try:
            with self._lock:
                seen = self._under_way.pop(id(graph), None)
                if seen is None:
                    return
                self._ends(self._told.pop())
                if not self._under_way:
                    self._windows.close(self._see)
                mixed = self._mixed
            if not finished:
                return
            if not mixed and len(seen) < MAX_LAUNCHES:
                self._captured(_launches(seen), self._life_of(graph))
            elif seen:
                self._not_captured("mixed" if mixed else "large")
        except Exception:
            self._fault("captures")

    def _life_of(self, graph: Any) -> Callable[[], bool]:
        try:
            life = _Life(graph)
        except TypeError:  # no weak references to such an object
            return lambda: True
        with self._lock:
            if len(self._lives) >= MAX_LIVES:
                self._lives = {i: each for i, each in self._lives.items() if each()}
            if len(self._lives) < MAX_LIVES:
                self._lives[id(graph)] = life
        return life

    def _emptied(self, graph: Any) -> None:
        """What was captured into this object, if anything, is gone."""
        life = self._lives.get(id(graph))
        if life is not None and life.graph() is graph:
            life.is_over = True

    def _see(self, seen: Seen) -> None:
        """A launch came back, on its own thread, whose current stream is the one it went to."""
        if self._is_capturing():
            for launches in list(self._under_way.values()):
                if len(launches) < MAX_LAUNCHES:
                    launches.append(seen)


def _launches(seen: list[Seen]) -> list[Launch]:
    """What became a node of the graph, in order."""
    found = []
    for each in sorted(seen, key=lambda launch: launch.before):
        x, y, z = (int(n) for n in each.target[:3])
        if x * y * z > 0 and each.returned:
            grid = (x * each.binary.ctas) << 32 | y << 16 | z  # as gpu.records.grid_code has it; that needs numpy
            found.append(((each.binary.name, grid), each.binary.label(each.key)))
    return found
