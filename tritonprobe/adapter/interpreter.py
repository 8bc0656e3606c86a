"""Kernels under Triton's interpreter (``TRITON_INTERPRET=1``): launches are counted, nothing is ever cold.

Touches `InterpretedFunction.run`. Interpreted launches take milliseconds, so a plain wrapper will do.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.patching import Patches
from tritonprobe.adapter.registry import Registry
from tritonprobe.adapter.sites import Site
from tritonprobe.model import LaunchError


class Interpreted:
    def __init__(self, registry: Registry, publish: Callable[[LaunchError], None], enabled: Callable[[], bool]) -> None:
        self._registry = registry
        self._publish = publish
        self._enabled = enabled

    def install(self, patches: Patches) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        patches.replace(InterpretedFunction, "run", self._run)

    def _run(self, original: Any) -> Any:
        @functools.wraps(original)
        def run(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            site = self._registry.site(kernel) if self._enabled() else None
            if site is None or warmup:  # a warm-up of an interpreted kernel does nothing at all
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            self._count(site, kernel, args, kwargs)
            try:
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            except BaseException:
                error = sys.exc_info()[0]
                self._publish(LaunchError(site.name, error.__name__ if error else "?", site.mode))
                raise

        return run

    def _count(self, site: Site, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            signature = inspect.signature(kernel.fn)
            known = {name: value for name, value in kwargs.items() if name in signature.parameters}
            values = signature.bind(*args, **known).arguments
            site.learn(values)
            if site.shape is not None:
                site.miss(site.shape, site.shape.key(values))
        except TypeError:
            site.count_unbound()
        except Exception:
            self._registry.fault("interpreter")
