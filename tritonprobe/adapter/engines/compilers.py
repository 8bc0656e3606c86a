"""Other compilers that engines call, each compile a cold call of its kind: FlashInfer, TileLang, CuTe DSL, DeepGEMM.

Installed only where their modules are imported. What is patched is what a compile, or a load from the compiler's own
disk cache, goes through, and no launch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.engines.attaching import Attachment, Part, UnknownShapeError, expect
from tritonprobe.adapter.engines.host import Host
from tritonprobe.adapter.patching import Patches
from tritonprobe.model import Tier

Describe = Callable[..., tuple[str, Tier]]
"""Gets a call's arguments; says what is made, and where it will be found."""


def attachment(host: Host) -> Attachment:
    """The compilers that this process may import."""
    made: list[Attachment] = []  # the patches ask it whether they are still wanted

    def watched(patches: Patches, owner: Any, name: str, kind: str, describe: Describe) -> None:
        expect(getattr(owner, name, None))
        patches.replace(owner, name, lambda original: _timed(original, host, made, kind, describe))

    def flashinfer(patches: Patches, core: Any) -> None:
        spec = core.JitSpec
        if not isinstance(getattr(spec, "is_compiled", None), property):
            raise UnknownShapeError("JitSpec does not say whether it is compiled")
        watched(patches, spec, "build_and_load", "flashinfer", _flashinfer)

    def tilelang(patches: Patches, kernel: Any) -> None:
        expect(kernel.JITKernel._compile_and_create_adapter, "self", "tilelang_func")
        watched(patches, kernel.JITKernel, "_compile_and_create_adapter", "tilelang", _tilelang("compile"))
        watched(patches, kernel.JITKernel, "_create_adapter_from_database", "tilelang", _tilelang("disk"))

    def cute(patches: Patches, dsl: Any) -> None:
        expect(dsl.BaseDSL.compile_and_jit, "self", "module", "pipeline", "shared_libs", "function_name")
        watched(patches, dsl.BaseDSL, "compile_and_jit", "cute", _cute)

    def deep_gemm(patches: Patches, compiler: Any) -> None:
        expect(compiler.build, "name")
        watched(patches, compiler, "build", "deep_gemm", _deep_gemm)

    parts = (
        Part("FlashInfer", "flashinfer.jit.core", flashinfer),
        Part("TileLang", "tilelang.jit.kernel", tilelang),
        Part("CuTe DSL", "cutlass.base_dsl.dsl", cute),
        Part("DeepGEMM", "deep_gemm.jit.compiler", deep_gemm),
    )
    made.append(Attachment("compilers", parts))
    return made[0]


def _timed(
    original: Callable[..., Any], host: Host, made: list[Attachment], kind: str, describe: Describe
) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_(*args: Any, **kwargs: Any) -> Any:
        if not made[0].on:
            return original(*args, **kwargs)
        name, tier = kind, "compile"
        try:
            name, tier = describe(*args, **kwargs)
        except Exception:
            host.fault("compilers")
        with host.outside(name, kind) as call:
            call.tier = tier  # type: ignore[assignment]  # mypy widens the default above
            return original(*args, **kwargs)

    return compile_


def _flashinfer(spec: Any, *_: Any, **__: Any) -> tuple[str, Tier]:
    return f"flashinfer.{spec.name}", "disk" if spec.is_aot or spec.is_compiled else "compile"


def _tilelang(tier: Tier) -> Describe:
    def describe(_kernel: Any, *args: Any, **kwargs: Any) -> tuple[str, Tier]:
        function = kwargs.get("tilelang_func", args[0] if args else None)
        attrs = getattr(function, "attrs", None)
        name = attrs["global_symbol"] if attrs is not None and "global_symbol" in attrs else "kernel"
        return f"tilelang.{name}", tier

    return describe


def _cute(_dsl: Any, _module: Any, *args: Any, **kwargs: Any) -> tuple[str, Tier]:
    name = kwargs.get("function_name") or (args[2] if len(args) > 2 else "") or "kernel"
    return f"cute.{name}", "compile"


def _deep_gemm(name: str, *_: Any, **__: Any) -> tuple[str, Tier]:
    return f"deep_gemm.{name}", "compile"
