"""Parts of an engine's adapter: each waits for one module, and is all there or not at all. Knows no engine."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tritonprobe.adapter.late_import import LateImport
from tritonprobe.adapter.patching import Patches
from tritonprobe.forks import tell_in_child

log = logging.getLogger("tritonprobe")


class UnknownShapeError(Exception):
    """What was to be patched is not what we know; the message says what differs."""


@dataclass(frozen=True, slots=True)
class Part:
    """What it gives (``steps``), the module that it waits for, and what to do with it then.

    ``install(patches, module)`` raises whatever keeps it from being installed; nothing of it is left then.
    """

    name: str
    module: str
    install: Callable[[Patches, Any], None]


def expect(function: Any, *names: str) -> None:
    """Raises UnknownShapeError unless `function` is callable and has these parameters first, in this order.

    Who takes its place hands them on by position, be they named by the caller or not.
    """
    if not callable(function):
        raise UnknownShapeError(f"{function!r} cannot be called")
    found = inspect.signature(function).parameters
    missing = [name for name in names if name not in found]
    if missing:
        raise UnknownShapeError(f"{_called(function)} takes no {', '.join(missing)}")
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if [name for name in found if found[name].kind in by_position][: len(names)] != list(names):
        raise UnknownShapeError(f"{_called(function)} does not begin with {', '.join(names)}")


def expect_awaited(function: Any, *names: str) -> None:
    """As `expect`; and what it returns has to be awaited."""
    expect(function, *names)
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise UnknownShapeError(f"{_called(function)} is not async")


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


class Attachment:
    """The parts of one engine in this process."""

    def __init__(self, engine: str, parts: Sequence[Part], removed: Callable[[], None] = lambda: None) -> None:
        """``removed()`` is called when everything was taken back."""
        self.engine = engine
        self.attached: set[str] = set()
        self.missing: dict[str, str] = {}
        self.on = False
        self._parts = parts
        self._removed = removed
        self._patches = Patches()
        self._waiting: list[LateImport] = []
        self._early: set[str] = set()  # modules that were still being imported when we came
        self._lock = threading.RLock()
        tell_in_child(self)

    def install(self) -> None:
        with self._lock:
            if self.on:
                return
            self.on = True
            for module in {part.module for part in self._parts}:
                if module in sys.modules and _unfinished(sys.modules[module]):
                    self._early.add(module)
                else:
                    self._waiting.append(LateImport(module, self._installing))
            waiting = list(self._waiting)
        for late in waiting:  # without the lock: a thread that imports the engine now may need it to finish
            late.wait()

    def remove(self) -> list[str]:
        """Takes everything back; returns the names that somebody else had wrapped."""
        with self._lock:
            if not self.on:
                return []
            self.on = False
            for late in self._waiting:
                late.cancel()
            self._waiting.clear()
            self._early.clear()
            self.attached.clear()
            self.missing.clear()
            left = self._patches.undo()
        self._removed()
        return left

    def settle(self) -> None:
        """Installs what came too early: modules that were half imported when we were, and are whole by now."""
        with self._lock:
            for name in [name for name in self._early if not _unfinished(sys.modules.get(name))]:
                self._early.discard(name)
                self._installing(sys.modules[name])

    def after_fork(self) -> None:
        """In a forked child: a thread that had the lock is not there."""
        self._lock = threading.RLock()

    def _installing(self, module: ModuleType) -> None:
        with self._lock:
            if not self.on:
                return  # removed meanwhile
            for part in (part for part in self._parts if part.module == module.__name__):
                try:
                    with self._patches.together():
                        part.install(self._patches, module)
                except Exception as error:
                    why = str(error) if isinstance(error, UnknownShapeError) else f"{error!r}"
                    self.missing[part.name] = why.partition("\n")[0]
                    log.warning("tritonprobe: %s: no %s: %s", self.engine, part.name, self.missing[part.name])
                else:
                    self.attached.add(part.name)


def _unfinished(module: ModuleType | None) -> bool:
    """Whether a module is still being imported: its names are not all there."""
    return module is None or bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
