"""Kernels that TorchInductor's worker processes compile. Touches `AsyncCompile.triton` and `LambdaFuture.result`.

A process of Inductor's compiles, this one waits: the wait is a phase of its own in the kernel's cold call, and ends
where `inductor_cold` goes on. What the worker did is not seen from here, but the age of the binary in Triton's cache
tells whether it was compiled or found.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonprobe.adapter.calls import Calls
from tritonprobe.adapter.inductor_counts import InductorCounts
from tritonprobe.adapter.patching import Patches
from tritonprobe.model import Tier

HEURISTICS = "torch._inductor.runtime.triton_heuristics"
KIND = "inductor"
PHASE = "inductor_workers"
"""A wait for the worker processes: all of their compiler's stages."""
COMPILED_IN_WORKERS = "compiled in Inductor's worker processes"
FOUND_IN_WORKERS = "found in Triton's disk cache by Inductor's worker processes"
CLOCK_SLACK_NS = 20_000_000  # a file's time may be a timer tick or two behind `time.time_ns`


@dataclass(slots=True)
class _Submitted:
    """A kernel that went to the worker processes."""

    kernel: str
    user: bool
    unix: int


class _Thread(threading.local):
    waited: _Submitted | None = None  # what the future under way was submitted as


class InductorWorkers:
    def __init__(self, calls: Calls, counts: InductorCounts, enabled: Callable[[], bool]) -> None:
        self._calls = calls
        self._counts = counts
        self._enabled = enabled
        self._thread = _Thread()
        self._submitted: weakref.WeakKeyDictionary[Any, _Submitted] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches, async_compile: Any) -> None:
        """Patches `torch._inductor.async_compile`."""
        patches.replace(async_compile.AsyncCompile, "triton", self._submit)
        patches.replace(async_compile.LambdaFuture, "result", self._wait)

    @property
    def waiting(self) -> bool:
        """Whether this thread waits for a worker, or has just stopped to and loads what it made."""
        return self._thread.waited is not None

    def told(self, autotuner: Any, digest: str) -> tuple[Tier, str] | None:
        """Where the worker that this thread waited for had a binary from, and in words; None without a worker."""
        waited = self._thread.waited
        if waited is None:
            return None
        heuristics: Any = sys.modules[HEURISTICS]
        cache = heuristics.triton_cache_dir(autotuner.triton_meta.get("device") or 0)
        folder = Path(cache) / heuristics.triton_hash_to_path_key(digest)
        if _made_since(waited.unix, folder):
            return "compile", COMPILED_IN_WORKERS
        return "disk", FOUND_IN_WORKERS

    def _submit(self, original: Any) -> Any:
        @functools.wraps(original)
        def triton(compiler: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
            unix = time.time_ns()
            future = original(compiler, kernel_name, source_code, *args, **kwargs)
            if type(future).__name__ == "LambdaFuture" and self._enabled():
                # A kernel that is in two graphs is submitted once.
                user = "custom_kernel=True" in source_code
                self._submitted.setdefault(future, _Submitted(kernel_name, user, unix))
            return future

        return triton

    def _wait(self, original: Any) -> Any:
        """`LambdaFuture.result` of a Triton kernel: waits for a worker process, then loads what it made."""

        @functools.wraps(original)
        def result(future: Any, *args: Any, **kwargs: Any) -> Any:
            submitted = self._submitted.get(future) if self._enabled() else None
            named = None if submitted is None else self._counts.name(submitted.kernel, submitted.user)
            call, ours = self._calls.begin(named[0]) if named is not None else (None, False)
            if call is None:
                return original(future, *args, **kwargs)
            if ours:
                call.kind = KIND
            depth = call.enter(PHASE)
            before, self._thread.waited = self._thread.waited, submitted
            try:
                return original(future, *args, **kwargs)
            except BaseException as error:
                if ours:
                    call.error = type(error).__name__
                raise
            finally:
                self._thread.waited = before
                call.leave(depth)
                if ours:
                    self._calls.close(call)

        return result


def _made_since(unix: int, folder: Path) -> bool:
    """Whether a binary's folder in Triton's cache was written after `unix`: it was compiled. True if there is none."""
    try:
        newest = max(entry.stat().st_mtime_ns for entry in folder.iterdir())
    except (OSError, ValueError):
        return True
    return newest >= unix - CLOCK_SLACK_NS
