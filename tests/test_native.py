"""C sources of ours: built once, kept, and given up quietly where they cannot be built."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tritonprobe import native

SOURCE = """
#include <Python.h>
static PyObject *answer(PyObject *m, PyObject *u) { (void)m; (void)u; return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "tiny", NULL, 0, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModuleDef_Init(&d); }
"""
needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C file that nobody built yet."""
    monkeypatch.setattr(native, "_loaded", {})  # as in a new process
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "tiny.c"
    file.write_text(SOURCE)
    return file


def answer_of(source: Path) -> int:
    """What the module answers in a new process."""
    native._loaded.clear()
    module = native.load(source)
    assert module is not None
    found: int = module.answer()
    return found


def built(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "tritonprobe").glob("*"))


@needs_compiler
def test_a_source_is_built_once_and_found_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(source) == 42
    assert len(built(tmp_path)) == 1
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert answer_of(source) == 42


@needs_compiler
def test_a_module_is_loaded_once_a_process(source: Path) -> None:
    assert native.load(source) is native.load(source)


@needs_compiler
def test_threads_that_build_it_at_the_same_time_all_have_it(source: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        modules = list(threads.map(native.load, [source] * 4))
    assert [None if module is None else module.answer() for module in modules] == [42] * 4
    assert len(built(tmp_path)) == 1


@needs_compiler
def test_another_text_in_a_header_beside_it_is_another_module(source: Path, tmp_path: Path) -> None:
    source.write_text(
        SOURCE.replace("#include <Python.h>", '#include <Python.h>\n#include "tiny.h"').replace("42", "ANSWER")
    )
    for answer in (42, 43):
        source.with_suffix(".h").write_text(f"#define ANSWER {answer}\n")
        assert answer_of(source) == answer
    assert len(built(tmp_path)) == 2


@needs_compiler
def test_another_text_is_another_module(source: Path, tmp_path: Path) -> None:
    answer_of(source)
    source.write_text(SOURCE.replace("42", "43"))
    assert answer_of(source) == 43
    assert len(built(tmp_path)) == 2


@needs_compiler
@pytest.mark.parametrize("keep", [0, 100, -1], ids=["empty", "cut off", "one byte short"])
def test_a_damaged_module_is_built_anew(keep: int, source: Path, tmp_path: Path) -> None:
    answer_of(source)
    (module,) = built(tmp_path)
    content = module.read_bytes()
    module.unlink()  # the file that is loaded stays what it is
    module.write_bytes(content[:keep])
    assert answer_of(source) == 42
    assert module.read_bytes() == content


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o500], ids=["others may write", "nobody may write"])
def test_a_folder_that_is_not_ours_alone_is_not_used(mode: int, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "tritonprobe"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    if mode == 0o500 and os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    assert answer_of(source) == 42
    assert built(tmp_path) == []


@needs_compiler
def test_a_cache_that_cannot_be_made_is_not_needed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answer_of(source) == 42


@pytest.mark.parametrize(
    ("name", "value"),
    [("CC", "/nowhere/cc"), ("CC", "false"), ("CC", "gcc '"), ("PATH", "/nowhere")],
    ids=["a compiler that is not there", "a compiler that fails", "no command", "no compiler"],
)
def test_without_a_compiler_there_is_no_module(
    name: str, value: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(name, value)
    assert native.load(source) is None
    assert built(tmp_path) == []


def test_a_source_with_a_fault_or_none_is_no_module(source: Path, tmp_path: Path) -> None:
    source.write_text("this is no C")
    assert native.load(source) is None
    assert native.load(tmp_path / "absent.c") is None
    assert built(tmp_path) == []
