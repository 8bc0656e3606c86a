"""FlashInfer, TileLang, CuTe DSL, DeepGEMM: what compiles there is a cold call of its kind. In outline: no GPU."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tritonprobe
from tritonprobe.runtime import Runtime

MODULES = {
    "flashinfer/jit/core.py": """
import time
class JitSpec:
    def __init__(self, name, compiled): self.name, self._compiled, self.is_aot = name, compiled, False
    is_compiled = property(lambda self: self._compiled)
    def build_and_load(self):
        time.sleep(0.02)
        return "module"
""",
    "tilelang/jit/kernel.py": """
import time
class JITKernel:
    def _compile_and_create_adapter(self, tilelang_func, out_idx): time.sleep(0.02)
    def _create_adapter_from_database(self, tilelang_func): time.sleep(0.02)
""",
    "cutlass/base_dsl/dsl.py": """
import time
class BaseDSL:
    def compile_and_jit(self, module, pipeline, shared_libs, function_name=""): time.sleep(0.02)
""",
    "deep_gemm/jit/compiler.py": "import time\ndef build(name, code): time.sleep(0.02)\n",
}


@pytest.fixture
def outlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if any(top in sys.modules for top in ("flashinfer", "tilelang", "cutlass", "deep_gemm")):
        pytest.skip("the real ones are imported in this process")
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        for folder in (path.parent, path.parent.parent):
            (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("flashinfer", "tilelang", "cutlass", "deep_gemm")
    ]:
        del sys.modules[name]


def test_each_is_a_cold_call_of_its_kind_and_tier(outlines: None, runtime: Runtime) -> None:
    tritonprobe.instrument()
    core = importlib.import_module("flashinfer.jit.core")
    kernel = importlib.import_module("tilelang.jit.kernel")
    cute = importlib.import_module("cutlass.base_dsl.dsl")
    deep_gemm = importlib.import_module("deep_gemm.jit.compiler")
    begin = time.monotonic()
    assert core.JitSpec("decode", compiled=False).build_and_load() == "module"
    core.JitSpec("decode", compiled=True).build_and_load()
    kernel.JITKernel()._compile_and_create_adapter(None, [])
    kernel.JITKernel()._create_adapter_from_database(None)
    cute.BaseDSL().compile_and_jit("m", "p", [], function_name="gemm")
    deep_gemm.build("fp8_gemm", "code")
    took = time.monotonic() - begin
    told = [(call.kernel, call.kind, call.tier) for call in runtime.cold_calls]
    assert told == [
        ("flashinfer.decode", "flashinfer", "compile"),
        ("flashinfer.decode", "flashinfer", "disk"),
        ("tilelang.kernel", "tilelang", "compile"),
        ("tilelang.kernel", "tilelang", "disk"),
        ("cute.gemm", "cute", "compile"),
        ("deep_gemm.fp8_gemm", "deep_gemm", "compile"),
    ]
    seconds = sum(call.wall_ns for call in runtime.cold_calls) / 1e9
    assert 6 * 0.02 <= seconds <= took
    before = core.JitSpec.build_and_load
    tritonprobe.uninstrument()
    assert core.JitSpec.build_and_load is not before
    assert not hasattr(core.JitSpec.build_and_load, "__wrapped__")
