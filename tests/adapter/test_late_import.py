"""Waiting for an import: the callback comes once, after the module is there, and nothing shows that we waited."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tritonprobe.adapter.late_import import LateImport

NAME = "late_import_example"


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before, "somebody is still waiting"


def waiting() -> tuple[LateImport, list[Any]]:
    seen: list[Any] = []
    late = LateImport(NAME, lambda module: seen.append((module.__name__, module.value)))
    late.wait()
    return late, seen


def test_the_callback_comes_once_and_finds_the_module_complete() -> None:
    _, seen = waiting()
    assert seen == []
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert seen == [(NAME, 1)]


def test_a_module_that_is_there_already_is_told_of_at_once() -> None:
    importlib.import_module(NAME)
    _, seen = waiting()
    assert seen == [(NAME, 1)]


def test_nothing_is_told_after_cancelling() -> None:
    late, seen = waiting()
    assert late.cancel()
    assert not late.cancel()
    importlib.import_module(NAME)
    assert seen == []


def face(module: ModuleType) -> tuple[Any, ...]:
    spec = module.__spec__
    assert spec is not None
    return (
        type(spec.loader),
        sorted(vars(spec.loader)),
        spec.origin,
        module.__loader__ is spec.loader,
        sorted(vars(module)),
    )


def test_the_module_looks_as_if_nobody_had_waited() -> None:
    plain = face(importlib.import_module(NAME))
    del sys.modules[NAME]
    waiting()
    assert face(importlib.import_module(NAME)) == plain


def test_looking_for_the_module_is_not_importing_it() -> None:
    _, seen = waiting()
    assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [(NAME, 1)]


class AsksAllOthers:
    """As some import hooks do: it finds nothing of its own, and asks whoever is there."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != NAME:
            return None
        found = (each.find_spec(fullname, path, target) for each in sys.meta_path if each is not self)
        return next((spec for spec in found if spec is not None), None)


@pytest.mark.parametrize("place", [0, 1, None], ids=["before us", "behind us", "last"])
def test_a_hook_that_asks_all_others_is_not_asked_for_ever(place: int | None) -> None:
    _, seen = waiting()
    hook: Any = AsksAllOthers()
    sys.meta_path.insert(len(sys.meta_path) if place is None else place, hook)
    try:
        importlib.import_module(NAME)
    finally:
        sys.meta_path.remove(hook)
    assert seen == [(NAME, 1)]


def test_two_may_wait_for_the_same_module() -> None:
    _, first = waiting()
    _, second = waiting()
    module = importlib.import_module(NAME)
    assert first == second == [(NAME, 1)]
    assert "exec_module" not in vars(module.__loader__)


def test_a_module_that_does_not_exist_is_missing_as_ever() -> None:
    late = LateImport("no_such_module_at_all", lambda module: pytest.fail(module.__name__))
    late.wait()
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")
    late.cancel()


def test_a_module_that_raises_is_not_told_of(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text("raise RuntimeError('broken')\n")
    late, seen = waiting()
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(NAME)
    assert seen == []
    late.cancel()
