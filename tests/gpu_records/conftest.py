"""The adapter's fixtures, for tests that launch real Triton kernels on the compile-only device; and both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapter.conftest import cache, nobody_probes, runtime
from tritonprobe import native
from tritonprobe.gpu import launch_log, matching, reading, spans

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
