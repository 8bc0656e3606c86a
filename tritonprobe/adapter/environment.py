"""What binaries of this process depend on beside their kernels. Touches Triton's key, its backends and its settings."""

from __future__ import annotations

import hashlib
import platform
import sys
from typing import Any

from tritonprobe.adapter.device import describe, is_compile_only
from tritonprobe.settings import SettingError
from tritonprobe.shapes.census import Environment


def environment_of(backend: Any) -> Environment:
    """The environment of what `backend` compiles here and now."""
    import triton
    from triton.runtime import cache

    torch = sys.modules.get("torch")
    target = backend.target
    return Environment(
        triton=triton.__version__,
        triton_key=digest(cache.triton_key()),
        target=f"{target.backend}:{target.arch}",
        ptxas=digest(str(backend.hash())),
        device=describe(),
        torch=None if torch is None else str(torch.__version__),
        python=platform.python_version(),
        variables=tuple(sorted((name, str(value)) for name, value in _variables().items())),
    )


def environment_now() -> Environment:
    """That of Triton's active device. Raises what Triton raises where there is none."""
    from triton.compiler.compiler import make_backend
    from triton.runtime.driver import driver

    backend = make_backend(driver.active.get_current_target())
    torch = sys.modules.get("torch")
    if torch is not None and not is_compile_only() and torch.cuda.is_available():
        torch.cuda.init()  # a driver of Triton's own needs no torch, which alone knows the device's name
    return environment_of(backend)


def differences(recorded: Environment, here: Environment) -> list[str]:
    """What keeps the binaries of one environment from being found in another, in words."""
    found = []
    if recorded.target != here.target:
        found.append(f"made for {recorded.target}, this is {here.target}")
    if recorded.triton != here.triton:
        found.append(f"made by Triton {recorded.triton}, this is {here.triton}")
    elif recorded.triton_key != here.triton_key:
        found.append(
            f"made by another build of Triton {here.triton} (key {recorded.triton_key}, here {here.triton_key})"
        )
    if recorded.target == here.target and recorded.ptxas != here.ptxas:
        found.append("made with another ptxas")
    before, now = dict(recorded.variables), dict(here.variables)
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    unset = "not set"
    return found + [f"{name} was {before.get(name, unset)!r}, here {now.get(name, unset)!r}" for name in changed]


def environment_for(target: str | None) -> Environment:
    """That of a device by name (``cuda:90``), which need not be there; None: of Triton's active one.

    Raises SettingError.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    if target is None:
        try:
            return environment_now()
        except RuntimeError:
            raise SettingError("no GPU here: name the device with --target, e.g. cuda:90") from None
    backend, _, arch = target.partition(":")
    if backend not in _EXAMPLES or not arch:
        raise SettingError(f"target {target!r}: expected {' or '.join(_EXAMPLES.values())}")
    try:
        return environment_of(make_backend(GPUTarget(backend, int(arch) if arch.isdecimal() else arch, 32)))
    except Exception as error:
        raise SettingError(f"target {target!r}: {error}") from None


_EXAMPLES = {"cuda": "cuda:90", "hip": "hip:gfx942"}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _variables() -> dict[str, Any]:
    """The environment variables that are part of Triton's disk key, as far as they are set."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    found: dict[str, Any] = get_cache_invalidating_env_vars()
    return found
