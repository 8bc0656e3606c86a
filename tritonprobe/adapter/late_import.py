"""Runs a callback right after a module has been imported, now or some day. Knows Python's import machinery only.

A finder at the front of ``sys.meta_path`` sees the one import it waits for, and leaves with `cancel()` or once it has
seen it. The module's own loader loads it; neither its spec nor the module shows that somebody waited.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

log = logging.getLogger("tritonprobe")


class LateImport(MetaPathFinder):
    """Calls ``then(module)`` once `name` is imported: at once if it is there already. ``then`` must not raise."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._asking: set[int] = set()  # threads in which those behind are asked at this moment

    def wait(self) -> None:
        sys.meta_path.insert(0, self)
        if self._name in sys.modules:
            module = importlib.import_module(self._name)  # waits for another thread that is still at it
            if self.cancel():
                self._then(module)

    def cancel(self) -> bool:
        """From here on the callback is never called. False if it was, or if this was done before."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What those behind us find; the loader of the module we wait for tells us when it is done."""
        thread = threading.get_ident()
        if fullname != self._name or thread in self._asking:  # one that we ask may ask all others itself, and so us
            return None
        behind = iter(list(sys.meta_path))
        any(finder is self for finder in behind)  # those before us have been asked
        self._asking.add(thread)
        try:
            for finder in behind:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
                if spec is not None:
                    self._listen(spec)
                    return spec
        finally:
            self._asking.discard(thread)
        return None

    def _listen(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        plain = getattr(loader, "exec_module", None)
        if loader is None or plain is None:
            log.debug("tritonprobe: %s has a loader that executes nothing: %r", self._name, loader)
            return

        def exec_module(module: ModuleType) -> None:
            if loader.__dict__.get("exec_module") is exec_module:
                del loader.__dict__["exec_module"]
            plain(module)
            # A loader may serve a whole archive; and who looks for a spec need not load it.
            if module.__name__ == self._name and self.cancel():
                self._then(module)

        try:
            # On the loader itself, so that the module keeps the loader it would have had.
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:
            log.debug("tritonprobe: the loader of %s takes no attributes: %r", self._name, loader)
