"""What Triton does once in a process (late imports, its own key, the driver), under its own phase's name."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.calls import Calls

log = logging.getLogger("tritonprobe")

NO_GPU = (
    "tritonprobe: Triton found no GPU here. With TRITONPROBE_DEVICE=compile-only:cuda:90 it compiles without one, and "
    "launches do nothing."
)

# Imported by Triton inside the first binder call or compile.
_LAZY_MODULES = (
    "triton.experimental.gluon.nvidia.hopper",
    "triton.tools.tensor_descriptor",
    "triton.language.extra.cuda",
    "triton.language.extra.cuda.libdevice",
    "triton.compiler.code_generator",
    "triton.compiler.errors",
)


class ProcessInit:
    def __init__(self, calls: Calls, enabled: Callable[[], bool], fault: Callable[[str], None]) -> None:
        self._calls = calls
        self._enabled = enabled
        self._fault = fault
        self._is_done = False

    def do(self, backend: Any) -> None:
        """Does the process's one-time work now, under its own name: else it would hide in whatever came first."""
        if self._is_done:
            return
        self._is_done = True
        call = self._calls.current
        depth = call.enter("process_init") if call is not None else 0
        try:
            for module in _LAZY_MODULES:
                try:
                    importlib.import_module(module)
                except ImportError:
                    log.debug("tritonprobe: %s is not in this Triton", module)
            from triton.runtime import cache, jit

            jit.native_specialize_impl(type(backend), 3, False, True, True)
            cache.triton_key()
            backend.hash()  # asks ptxas for its version
        except Exception:
            self._fault("phases")
        finally:
            if call is not None:
                call.leave(depth)

    def create_driver(self, original: Any) -> Any:
        @functools.wraps(original)
        def create_driver() -> Any:
            call, ours = self._calls.begin() if self._enabled() else (None, False)
            depth = call.enter("process_init") if call is not None else 0
            try:
                return original()
            except RuntimeError as error:
                if str(error).startswith("0 active drivers"):
                    _note_no_gpu(error)
                raise
            finally:
                if call is not None:
                    call.leave(depth)
                    if ours:
                        self._calls.close(call)

        return create_driver


def _note_no_gpu(error: RuntimeError) -> None:
    """Says what to do where its reader looks: below the traceback, and nowhere if the program goes on without a GPU."""
    if sys.version_info >= (3, 11):
        error.add_note(NO_GPU)
    else:
        log.warning("%s", NO_GPU)
