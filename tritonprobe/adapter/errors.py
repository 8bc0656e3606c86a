"""Triton's exceptions as the closed reasons of `fallbacks_total`."""

from __future__ import annotations

from tritonprobe.model import FallbackReason


def fallback_reason(error: BaseException) -> FallbackReason | None:
    """Why an op may fall back after `error`; None for an error that is the caller's to hear."""
    from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
    from triton.runtime.errors import AutotunerError, OutOfResources, PTXASError

    if isinstance(error, OutOfResources):
        return "out_of_resources"
    if isinstance(error, AutotunerError):  # pruning left none; where none works, a launch raises its own
        return "autotune_failed"
    if isinstance(error, (CompilationError, CompileTimeAssertionFailure, PTXASError)):
        return "compile_error"
    return None
