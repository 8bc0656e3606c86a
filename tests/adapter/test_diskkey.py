"""A variant that was on disk and is not found any more: which part of Triton's key changed. Real keys, real caches."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.adapter import kernels
from tests.adapter.conftest import cubins_in, fresh
from tritonprobe.adapter import diskkey
from tritonprobe.model import ArgClass, Variant
from tritonprobe.runtime import Runtime
from tritonprobe.testing import capture_cold_calls, compile_only

X = torch.empty(64)


def why(kernel: Any) -> tuple[str, ...]:
    """The reasons of one launch beyond "new kernel"."""
    with capture_cold_calls() as calls:
        kernel[(1,)](X, X, X, 64, BLOCK=64)
    return tuple(r for call in calls for r in call.reasons if "not on disk" in r)


def kernel_from(folder: Path, source: str) -> Any:
    """A kernel of a module of its own, always of the same name."""
    import importlib.util

    file = folder / "somebodys_kernels.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("somebodys_kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import linecache

    linecache.checkcache()
    spec.loader.exec_module(module)
    return module.copy


SOURCE = """
import triton
import triton.language as tl

@triton.jit
def copy(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
"""


def test_a_first_compile_has_nothing_to_say(instrumented: Runtime) -> None:
    assert why(fresh(kernels.add_kernel)) == ()


def test_an_environment_variable_is_named(instrumented: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    why(fresh(kernels.add_kernel))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    assert why(fresh(kernels.add_kernel)) == ("not on disk since TRITON_DISABLE_LINE_INFO went from unset to true",)


def test_a_moved_line_and_a_changed_source_are_named(instrumented: Runtime, tmp_path: Path) -> None:
    assert why(kernel_from(tmp_path, SOURCE)) == ()
    assert why(kernel_from(tmp_path, "\n\n" + SOURCE)) == ("not on disk since line went from 5 to 7",)
    assert why(kernel_from(tmp_path, SOURCE.replace("tl.load(x", "tl.load(y"))) == (
        "not on disk since source changed",
        "not on disk since line went from 7 to 5",
    )


def test_another_target_is_named(instrumented: Runtime) -> None:
    why(fresh(kernels.add_kernel))
    with compile_only("cuda:80"):
        assert why(fresh(kernels.add_kernel)) == ("not on disk since target went from 90 to 80",)


def test_a_deleted_entry_is_told_from_a_changed_one(instrumented: Runtime, cache: Path) -> None:
    why(fresh(kernels.add_kernel))
    for entry in cache.glob("*/__grp__*.json"):
        entry.unlink()
    assert why(fresh(kernels.add_kernel)) == ("not on disk though nothing changed, so the entry is gone or unreadable",)


def test_the_files_lie_beside_tritons_entries_and_are_none(instrumented: Runtime, cache: Path) -> None:
    why(fresh(kernels.add_kernel))
    assert cubins_in(cache) == 1
    assert [file.suffix for file in (cache / ".tritonprobe").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2, "parts": {}}', '{"format": 1, "parts": 3}', "\x00" * 9]
)
def test_a_file_that_cannot_be_read_is_no_evidence(tmp_path: Path, content: str) -> None:
    variant = Variant("m.k", (("x", ArgClass("*fp32", "%16")),), (("num_warps", "4"),))
    diskkey.remember(tmp_path, variant, {"line": "1"})
    assert diskkey.why_not_on_disk(tmp_path, variant, {"line": "2"}) != ()
    (file,) = (tmp_path / ".tritonprobe").iterdir()
    file.write_text(content)
    assert diskkey.why_not_on_disk(tmp_path, variant, {"line": "2"}) == ()


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    variant = Variant("m.k", (), ())
    diskkey.remember(blocked, variant, {"line": "1"})
    assert diskkey.why_not_on_disk(blocked, variant, {"line": "1"}) == ()


def test_a_full_disk_leaves_no_half_of_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        diskkey.remember(tmp_path, Variant("m.k", (), ()), {"line": "1"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / ".tritonprobe").iterdir()) == []
