"""What ``tritonprobe run`` puts in front of a program: instruments Triton once the program imports it.

Python's `site` imports this at the start of each process. It waits for the import of ``triton`` and does nothing else:
no package of ours, and nothing that costs, is imported in a process that never does. Then it steps aside: its folder
leaves ``sys.path``, and the program's own ``sitecustomize`` runs in its place, or `site` hears that there is none.

Standard library only, and of that only what every Python has loaded by now.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident  # what threading has it from, which costs more than all of this

TYPE_CHECKING = False  # typing's costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# pathlib is not loaded yet, either.
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_PACKAGE = os.path.dirname(_HERE)  # noqa: PTH120


class _AwaitTriton:
    """A finder that finds nothing of its own: it asks those behind it, and listens for the end of one import.

    Whatever fails on our side, the import goes as it would have gone.
    """

    def __init__(self) -> None:
        self._asking: set[int] = set()  # threads in which those behind are asked at this moment

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        thread = get_ident()
        if fullname != "triton" or thread in self._asking:  # one that we ask may ask all others itself, and so us
            return None
        behind = iter(list(sys.meta_path))
        any(finder is self for finder in behind)  # those before us have been asked
        self._asking.add(thread)
        try:
            for finder in behind:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
                if spec is not None:
                    self._listen(spec.loader)
                    return spec
        finally:
            self._asking.discard(thread)
        return None

    def _listen(self, loader: Loader | None) -> None:
        plain = getattr(loader, "exec_module", None)
        if loader is None or plain is None:
            return  # a folder of that name, without an __init__.py

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)
            plain(module)
            if module.__name__ == "triton" and self in sys.meta_path:
                sys.meta_path.remove(self)
                _instrument(module)

        try:
            # On the loader itself, so that the module keeps the loader it would have had.
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:
            _complain(f"the loader of triton takes no attributes: {loader!r}")


def _instrument(triton: ModuleType) -> None:
    if not hasattr(triton, "jit"):
        return  # something else of that name
    try:
        _own_or_ours().instrument()
    except Exception as error:
        _complain(f"{type(error).__name__}: {error}")


def _own_or_ours() -> ModuleType:
    """The program's own tritonprobe; one that has none gets that of this file, and nothing else from beside it."""
    try:
        import tritonprobe
    except ModuleNotFoundError as error:
        if error.name != "tritonprobe":
            raise
    else:
        return tritonprobe
    from importlib import util

    init = f"{_PACKAGE}/__init__.py"
    spec = util.spec_from_file_location("tritonprobe", init, submodule_search_locations=[_PACKAGE])
    assert spec is not None
    assert spec.loader is not None
    ours = sys.modules["tritonprobe"] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(ours)
    except BaseException:
        del sys.modules["tritonprobe"]
        raise
    return ours


def _complain(because: str) -> None:
    import logging

    logging.getLogger("tritonprobe").warning("tritonprobe: process %d is not probed (%s)", os.getpid(), because)


def _step_aside() -> None:
    """The program's `sitecustomize` in our place. Raises what its import raises; that there is none, `site` expects."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _HERE]  # noqa: PTH100
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")


def _is_inductors_worker() -> bool:
    """Whether Inductor started this process to compile in: that is told by the cold call that waits for it."""
    return any(word.endswith("/torch/_inductor/compile_worker/__main__.py") for word in sys.orig_argv)


if __name__ == "sitecustomize":  # which it is not for a tool that reads the package
    if not _is_inductors_worker():
        sys.meta_path.insert(0, _AwaitTriton())
    _step_aside()
