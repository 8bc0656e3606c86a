"""Each test gets a fresh runtime, the compile-only device, a cache folder of its own and kernels nobody launched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import triton

import tritonprobe
from tests.adapter import kernels
from tritonprobe import runtime as runtime_module
from tritonprobe.ledger import Metric, Sample
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.testing import compile_only

PACKAGE = Path(tritonprobe.__file__).parent


@pytest.fixture(autouse=True)
def nobody_probes() -> Iterator[None]:
    """Triton as it came: other tests' modules probe kernels when they are imported, and find that again afterwards."""
    others = runtime_module.current().adapter
    probed = others._on
    others.uninstall()
    yield
    if probed:
        others.install()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's cache folder, empty."""
    folder = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def runtime(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime that is `tritonprobe.runtime.current()`, not instrumented yet, on the compile-only device."""
    fresh = Runtime(Settings())
    monkeypatch.setattr(runtime_module, "_current", fresh)
    with compile_only("cuda:90"):
        yield fresh
        tritonprobe.uninstrument()
    assert fresh.adapter.calls.current is None, "a cold call was left open"
    assert total_of(fresh, "errors_total") == 0, "tritonprobe counted faults of its own"


@pytest.fixture
def instrumented(runtime: Runtime) -> Runtime:
    tritonprobe.instrument()
    return runtime


def fresh(kernel: Any) -> Any:
    """The same kernel as a new object: nothing compiled, nothing bound."""
    return triton.jit(kernel.fn)


def samples_of(runtime: Runtime, name: str) -> dict[tuple[str, ...], float]:
    for family in runtime.ledger.collect():
        if family.metric.name == name:
            return {sample.labels: sample.value for sample in family.samples if isinstance(sample, Sample)}
    return {}


def total_of(runtime: Runtime, metric: str | Metric) -> float:
    return sum(samples_of(runtime, metric if isinstance(metric, str) else metric.name).values())


def cubins_in(cache: Path) -> int:
    """Binaries Triton wrote, counted by looking."""
    return len(list(cache.glob("*/*.cubin")))


@pytest.fixture
def add() -> Callable[..., Any]:
    """``add(x, y, out, n, **options)``: launches a fresh vector add on one block of 128."""
    kernel = fresh(kernels.add_kernel)

    def launch(x: Any, y: Any, out: Any, n: Any, **options: Any) -> Any:
        return kernel[(1,)](x, y, out, n, **{"BLOCK": 128, **options})

    launch.kernel = kernel  # type: ignore[attr-defined]
    return launch


def interrupted(function: Callable[[], object], event: int, *ours: str) -> bool:
    """Calls it; a signal's handler raises at the `event`-th place in functions of `ours` where it may, if there is one.

    Python runs handlers as its functions begin, and when calls return.
    """
    left = event

    def count(frame: FrameType, what: str, _: object) -> None:
        nonlocal left
        if what in ("call", "c_return") and frame.f_code.co_name in ours:
            left -= PACKAGE in Path(frame.f_code.co_filename).parents
            if left == 0:
                left = -1
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
