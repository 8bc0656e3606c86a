"""Other profilers of this process: told of before they begin and after they end, so that CUPTI has one user at a time.

Touches the functions of `torch.autograd.profiler` through which torch's profilers all start and stop, and the C module
of Proton, Triton's profiler. Both are patched once they are imported.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tritonprobe.adapter.late_import import LateImport
from tritonprobe.adapter.patching import Patches

log = logging.getLogger("tritonprobe")

TORCH, PROTON = "torch.profiler", "Proton"
_TORCH_BEGINS, _TORCH_ENDS = ("_prepare_profiler", "_enable_profiler"), ("_disable_profiler",)
_PROTON_BEGINS = ("start", "activate", "activate_all")
_PROTON_ENDS = ("deactivate", "deactivate_all", "finalize", "finalize_all")


class Profilers:
    """``begins(who)`` and ``ends(who)`` are called in turn; sessions that overlap are one."""

    def __init__(
        self, begins: Callable[[str], None], ends: Callable[[str], None], fault: Callable[[str], None]
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._fault = fault
        self._patches = Patches()
        self._waiting: list[LateImport] = []
        self._at_work: set[str] = set()

    def install(self) -> None:
        self._waiting = [
            LateImport("torch.autograd.profiler", self._patch_torch),
            LateImport("triton.profiler.profile", self._patch_proton),
        ]
        for late in self._waiting:
            late.wait()

    def remove(self) -> list[str]:
        for late in self._waiting:
            late.cancel()
        self._waiting.clear()
        for who in list(self._at_work):
            self._tell(who, False)
        return self._patches.undo()

    def _patch_torch(self, module: ModuleType) -> None:
        self._patch(module, TORCH, _TORCH_BEGINS, _TORCH_ENDS)

    def _patch_proton(self, module: ModuleType) -> None:
        self._patch(module.libproton, PROTON, _PROTON_BEGINS, _PROTON_ENDS)

    def _patch(self, owner: Any, who: str, begins: tuple[str, ...], ends: tuple[str, ...]) -> None:
        for name, starts in (*((name, True) for name in begins), *((name, False) for name in ends)):
            if hasattr(owner, name):
                self._patches.replace(owner, name, functools.partial(self._around, who, starts))

    def _around(self, who: str, starts: bool, original: Any) -> Any:
        @functools.wraps(original)
        def profiler(*args: Any, **kwargs: Any) -> Any:
            if starts:
                self._tell(who, True)
            try:
                return original(*args, **kwargs)
            finally:
                if not starts:
                    self._tell(who, False)

        return profiler

    def _tell(self, who: str, starts: bool) -> None:
        try:
            if starts and who not in self._at_work:
                self._at_work.add(who)
                self._begins(who)
            elif not starts and who in self._at_work:
                self._at_work.discard(who)
                self._ends(who)
        except Exception:
            self._fault("profilers")
