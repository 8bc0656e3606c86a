"""C sources of ours: built once, kept, and given up quietly where they cannot be built."""

from __future__ import annotations

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
    monkeypatch.setattr(native, "_loaded", {})  # as in a new process
    file = tmp_path / "tiny.c"
    file.write_text(SOURCE)
    return file


@needs_compiler
def test_a_source_is_built_once_and_found_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "ours"
    first = native.load(source, folder)
    assert first is not None
    assert first.answer() == 42
    assert len(list(folder.iterdir())) == 1

    monkeypatch.setenv("CC", "/nowhere/cc")
    native._loaded.clear()
    again = native.load(source, folder)
    assert again is not None
    assert again.answer() == 42


@needs_compiler
def test_another_text_is_another_module(source: Path, tmp_path: Path) -> None:
    native.load(source, tmp_path / "built")
    source.write_text(SOURCE.replace("42", "43"))
    changed = native.load(source, tmp_path / "built")
    assert changed is not None
    assert changed.answer() == 43
    assert len(list((tmp_path / "built").iterdir())) == 2


@needs_compiler
@pytest.mark.parametrize("keep", [0, 100, -1], ids=["empty", "cut off", "one byte short"])
def test_a_damaged_module_is_built_anew(keep: int, source: Path, tmp_path: Path) -> None:
    native.load(source, tmp_path / "built")
    (built,) = (tmp_path / "built").iterdir()
    content = built.read_bytes()
    built.unlink()  # the file that is loaded stays what it is
    built.write_bytes(content[:keep])
    native._loaded.clear()
    again = native.load(source, tmp_path / "built")
    assert again is not None
    assert again.answer() == 42
    assert built.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "value"),
    [("CC", "/nowhere/cc"), ("CC", "false"), ("PATH", "/nowhere")],
    ids=["a compiler that is not there", "a compiler that fails", "no compiler"],
)
def test_without_a_compiler_there_is_no_module(
    name: str, value: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(name, value)
    assert native.load(source, tmp_path / "built") is None
    assert list((tmp_path / "built").glob("*")) == []


def test_a_source_with_a_fault_is_no_module(source: Path, tmp_path: Path) -> None:
    source.write_text("this is no C")
    assert native.load(source, tmp_path / "built") is None
    assert list((tmp_path / "built").glob("*")) == []


def test_a_folder_that_cannot_be_made_is_no_module(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert native.load(source, tmp_path / "file" / "built") is None
    assert native.load(source, None) is None
    assert native.load(tmp_path / "absent.c", tmp_path) is None
