"""The adapter's fixtures, for tests that launch real Triton kernels on the compile-only device; and both ways."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.conftest import cache, nobody_probes, runtime
from tritonprobe import native
from tritonprobe.gpu import launch_log, matching, reading, spans
from tritonprobe.gpu.cupti import CALLBACKS_SOURCE, Cupti

__all__ = ["cache", "nobody_probes", "runtime"]


@pytest.fixture(scope="module", autouse=True, params=["compiled", "plain"])
def way(request: Any) -> Iterator[None]:
    """What is done to every record and launch, in C and without a compiler."""
    if request.param == "compiled":
        if native.compiler() is None:
            pytest.skip("there is no C compiler here")
        assert all(module.compiled() is not None for module in (launch_log, matching, reading, spans))
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in (launch_log, matching, reading, spans):
            patch.setattr(module, "compiled", lambda: None)
        yield


@pytest.fixture(scope="module")
def cupti() -> Cupti:
    """Triton's copy of CUPTI, which loads without a GPU and reads clocks and records."""
    if native.load(CALLBACKS_SOURCE) is None:
        pytest.skip("there is no C compiler")
    spec = find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("backends/nvidia/lib/cupti/libcupti.so.12"))
    if not found:
        pytest.skip("Triton has no libcupti of CUDA 12")
    return Cupti(str(found[0]))
