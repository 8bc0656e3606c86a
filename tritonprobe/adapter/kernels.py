"""Triton's kernel objects: what is inside of one, what it is called, and which there are.

Touches `JITFunction`, `Autotuner`, `Heuristics` and `InterpretedFunction`, never their behaviour.
"""

from __future__ import annotations

import inspect
from typing import Any

from tritonprobe.adapter.homes import home_of, module_of
from tritonprobe.adapter.inductor_names import MODULES, canonical_name
from tritonprobe.living import in_modules, instances


def jit_function(kernel: Any) -> Any:
    """The `JITFunction` (or `InterpretedFunction`) at the bottom of autotuners and heuristics, or None."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for _ in range(32):
        if isinstance(kernel, (JITFunction, InterpretedFunction)):
            return kernel
        kernel = getattr(kernel, "fn", None)
    return None


def is_kernel(thing: Any) -> bool:
    """Whether `thing` is one of Triton's kernel objects."""
    from triton.runtime.jit import KernelInterface

    return issubclass(type(thing), KernelInterface) and jit_function(thing) is not None


def name_of(jit: Any) -> str:
    """``module.qualname`` of a kernel, its label; Inductor's have names of their own."""
    return _named(jit, module_of(jit.fn))


def home_name_of(jit: Any) -> str:
    """Its name in a census, which other programs read: as `name_of`, but that the module is its home."""
    return _named(jit, home_of(jit.fn))


def _named(jit: Any, module: str) -> str:
    name = str(getattr(jit.fn, "__qualname__", None) or getattr(jit.fn, "__name__", "?"))
    # The modules that Inductor writes are named by a hash, and there is no end of them.
    return canonical_name(name) if module.startswith(MODULES) else f"{module}.{name}"


def constexprs_of(jit: Any) -> tuple[str, ...]:
    """The names of its compile-time arguments."""
    if hasattr(jit, "params"):
        return tuple(p.name for p in jit.params if p.is_constexpr)
    # The interpreter's kernels have annotations only: the class, or its text where the module postpones them.
    annotated = inspect.signature(jit.fn).parameters.values()
    return tuple(p.name for p in annotated if "constexpr" in str(p.annotation))


def living_kernels() -> list[Any]:
    """Every `JITFunction` of the process: those the collector tracks, and those in modules.

    After ``gc.freeze()`` (servers call it) the collector lists none, hence both; `Registry.kernels` knows more.
    """
    from triton.runtime.jit import JITFunction, KernelInterface

    named = [jit for value in in_modules(KernelInterface) if isinstance(jit := jit_function(value), JITFunction)]
    return list({id(jit): jit for jit in (*named, *instances(JITFunction))}.values())
