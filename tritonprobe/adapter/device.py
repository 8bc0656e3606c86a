"""The compile-only device: Triton's real front end, compiler, ptxas and caches on a machine without a GPU.

Launches do nothing, module loads do nothing, and there are no GPU times. Touches Triton's driver slot only, and gives
it back.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tritonprobe.living import instances
from tritonprobe.seen import NOTHING_RUNS
from tritonprobe.settings import SettingError

PREFIX = "compile-only:"


@dataclass(frozen=True, slots=True)
class _Chip:
    max_shared_mem: int  # bytes a block may use, CUDA C++ Programming Guide, table of compute capabilities
    multiprocessors: int


# A100, H100 and B200: NVIDIA's architecture white papers.
_CHIPS = {80: _Chip(166_912, 108), 90: _Chip(232_448, 132), 100: _Chip(232_448, 148)}


def parse_target(text: str) -> int:
    """``cuda:90`` -> 90. Raises SettingError naming what is allowed."""
    arch = _arch(text)
    if arch is None:
        allowed = ", ".join(f"cuda:{arch}" for arch in _CHIPS)
        raise SettingError(f"compile-only target {text!r}: expected one of {allowed}")
    return arch


def parse_device(text: str) -> int:
    """``compile-only:cuda:90`` -> 90. Raises SettingError."""
    arch = _arch(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if arch is None:
        raise SettingError(f"TRITONPROBE_DEVICE={text!r}: expected {PREFIX}cuda:90 (cuda:80, cuda:100), or none")
    return arch


def _arch(target: str) -> int | None:
    match = re.fullmatch(r"cuda:(\d+)", target.strip())
    return int(match[1]) if match is not None and int(match[1]) in _CHIPS else None


class CompileOnlyLauncher:
    """Takes the place of a backend's launcher; counts what would have run."""

    launches = 0  # with a grid that is not empty, of the whole process

    def __init__(self, src: Any, metadata: Any) -> None:
        """Triton hands over what a real launcher is built from."""

    def __call__(self, x: int, y: int, z: int, *_: Any) -> None:
        if x * y * z > 0:
            CompileOnlyLauncher.launches += 1


class _Module:
    """Stands where a loaded module would."""


class _Utils:
    def __init__(self, chip: _Chip) -> None:
        self._properties = {
            "max_shared_mem": chip.max_shared_mem,
            "multiprocessor_count": chip.multiprocessors,
            "warpSize": 32,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(self._properties)

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, None, None, int]:
        return _Module(), object(), None, None, 1024  # registers and spills are the driver's to say: unknown here

    def unload_module(self, module: Any) -> None:
        pass


def _benchmark(kernel_call: Callable[[], Any], **_: Any) -> list[float]:
    """Compiles; there is nothing to time, so the first configuration that compiles wins."""
    kernel_call()
    return [0.0, 0.0, 0.0]


def _make_driver(arch: int) -> Any:
    """A driver that says it has one device of compute capability `arch`. Triton's base class is imported here only."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class CompileOnlyDriver(DriverBase):  # type: ignore[misc, unused-ignore]  # triton ships no types
        def __init__(self) -> None:
            super().__init__()
            self.utils = _Utils(_CHIPS[arch])
            self.launcher_cls = CompileOnlyLauncher

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", arch, 32)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_current_device(self) -> int:
            # Kernels keep what they compiled by device number; a number of its own keeps targets apart.
            return arch

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

        def get_benchmarker(self) -> Callable[..., list[float]]:
            return _benchmark

    return CompileOnlyDriver()


def _unload_all() -> None:
    """Takes our modules out of Triton's kernels: from 3.9 on each asks the active driver to unload it when it goes."""
    from triton.compiler.compiler import CompiledKernel

    for kernel in instances(CompiledKernel):
        if type(getattr(kernel, "module", None)) is _Module:  # Triton may have failed to make it: it has none then
            kernel.module = kernel.function = kernel._run = None


def activate(arch: int) -> Callable[[], None]:
    """Makes the compile-only device Triton's active driver; returns what puts the former one back."""
    from triton.runtime.driver import driver

    before = driver._active
    ours = _make_driver(arch)
    driver.set_active(ours)
    if is_compile_only not in NOTHING_RUNS:
        NOTHING_RUNS.append(is_compile_only)

    def restore() -> None:
        if sys.is_finalizing():  # nothing can be imported any more, and nobody launches
            return
        _unload_all()
        if driver._active is ours:
            driver.set_active(before)

    return restore


@contextmanager
def compile_only(target: str = "cuda:90") -> Iterator[None]:
    """Inside the block Triton compiles for `target` (``cuda:80``, ``cuda:90``, ``cuda:100``); launches do nothing."""
    restore = activate(parse_target(target))
    try:
        yield
    finally:
        restore()


def describe() -> str:
    """The device launches go to: ``compile-only:cuda:90``, ``cuda:90 (NVIDIA H200)``, ``interpreter`` or ``none``.

    Asks nobody who is not there already: no driver is created and no CUDA context is made for it.
    """
    if "triton" not in sys.modules:
        return "none"
    from triton import knobs
    from triton.runtime.driver import driver

    active = driver._active
    if active is None:
        return "interpreter" if knobs.runtime.interpret else "none"
    target = active.get_current_target()
    name = f"{target.backend}:{target.arch}"
    if isinstance(getattr(active, "utils", None), _Utils):
        return f"{PREFIX}{name}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return f"{name} ({torch.cuda.get_device_name()})"
    return name


def elsewhere() -> Callable[[], None] | None:
    """What makes this thread's device current on another thread; None where only this thread can load binaries."""
    if is_compile_only():
        return lambda: None
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return functools.partial(torch.cuda.set_device, torch.cuda.current_device())


def has_gpu() -> bool:
    """Whether torch, or without it Triton's own driver, sees a GPU; or the compile-only device is active."""
    if is_compile_only():
        return True
    try:
        import torch
    except ModuleNotFoundError:
        from triton.backends import backends

        return any(backend.driver.is_active() for backend in backends.values())
    return torch.cuda.is_available()


def is_in_use() -> bool:
    """Whether this process has a device of Triton's. Asks nobody who would make one."""
    torch = sys.modules.get("torch")
    return "triton" in sys.modules and (
        drivers()._active is not None or (torch is not None and torch.cuda.is_initialized())
    )


def is_capturing() -> bool:
    """Whether this thread's stream is being captured: nothing may be loaded then."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_compile_only() -> bool:
    """Whether launches do nothing now."""
    return isinstance(getattr(drivers()._active, "utils", None), _Utils)


@functools.cache
def drivers() -> Any:
    """Triton's driver slot, kept: ops ask at each call, and an import statement costs more than the question."""
    from triton.runtime.driver import driver

    return driver
