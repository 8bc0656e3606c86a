"""Parts attach when their module comes, each by itself; one that does not know what it finds leaves all alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tritonprobe.adapter.engines.attaching import Attachment, Part, expect
from tritonprobe.adapter.patching import Patches

ENGINE = """
class Core:
    def step(self, batch): return "stepped"
    def end(self, batch): return "ended"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `some_engine`, importable, and forgotten afterwards."""
    package = tmp_path / "some_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("some_engine")]:
        del sys.modules[name]


def attachment(calls: list[str], *wanted: str) -> Attachment:
    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(original.__name__)
            return original(*args)

        return call

    def patch(patches: Patches, module: Any) -> None:
        patches.replace(module.Core, "end", counted)
        expect(module.Core.step, *wanted)
        patches.replace(module.Core, "step", counted)

    return Attachment("some engine", [Part("steps", "some_engine.core", patch)])


def test_a_part_is_attached_when_its_module_comes_and_taken_back(engine: Path) -> None:
    calls: list[str] = []
    found = attachment(calls, "self", "batch")
    found.install()
    assert not found.attached
    core = importlib.import_module("some_engine.core")
    assert found.attached == {"steps"}
    assert core.Core().step([]) == "stepped"
    assert calls == ["step"]
    ours = dict(vars(core.Core))
    assert found.remove() == []
    assert core.Core().step([]) == "stepped"
    assert calls == ["step"]
    found.install()  # again, now that it is there
    assert set(vars(core.Core)) == set(ours)
    core.Core().step([])
    assert calls == ["step", "step"]
    found.remove()


def test_an_unknown_shape_is_named_and_nothing_of_the_part_stays(engine: Path, caplog) -> None:
    calls: list[str] = []
    found = attachment(calls, "self", "batch", "grammar")
    found.install()
    core = importlib.import_module("some_engine.core")
    assert found.missing == {"steps": "Core.step takes no grammar"}
    assert "some engine: no steps: Core.step takes no grammar" in caplog.text
    assert core.Core().end([]) == "ended"
    assert calls == []
    found.remove()


def test_a_module_that_is_half_imported_is_patched_once_it_is_whole(engine: Path) -> None:
    calls: list[str] = []
    found = attachment(calls, "self", "batch")
    (engine / "core.py").write_text("import some_engine\nsome_engine.hook()\n" + ENGINE)
    package = importlib.import_module("some_engine")
    package.hook = found.install  # type: ignore[attr-defined]
    importlib.import_module("some_engine.core")
    assert not found.missing
    found.settle()
    assert found.attached == {"steps"}
    found.remove()


def test_what_comes_after_the_removal_is_left_alone(engine: Path) -> None:
    found = attachment([], "self")
    before = list(sys.meta_path)
    found.install()
    found.remove()
    assert sys.meta_path == before
    importlib.import_module("some_engine.core")
    assert not found.attached
