"""The adapter's fixtures, for tests that launch real Triton kernels on the compile-only device."""

from __future__ import annotations

from tests.adapter.conftest import cache, nobody_probes, runtime

__all__ = ["cache", "nobody_probes", "runtime"]
