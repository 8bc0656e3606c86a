"""What others call the program's own module: under ``python -m server`` it is ``__main__`` to itself, and ``server``.

Knows Python's modules, and nothing of Triton.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

MAIN = ("__main__", "__mp_main__")
"""The module that is the program, and what it is called in a process that multiprocessing spawned."""


def module_of(thing: Any) -> str:
    """The module of a function or class, as it calls it."""
    return getattr(thing, "__module__", None) or "?"


def home_of(thing: Any) -> str:
    """The module that a function or class can be imported from; ``__main__`` if it is a script's, which nobody can."""
    module = module_of(thing)
    if module not in MAIN:
        return module
    # A function tells by itself; `sys.modules` may hold a profiler that runs the program.
    inside = getattr(thing, "__globals__", None)
    if inside is None and module in sys.modules:
        inside = vars(sys.modules[module])
    return _home(inside or {})


def home_of_main() -> str:
    """The home of what this program's own module defines."""
    return _home(vars(sys.modules["__main__"]))


def is_file_of_main(module: str) -> bool:
    """Whether to import it is to run the program's own file once more. Raises what finding a module raises."""
    found = importlib.util.find_spec(module)
    ours = getattr(sys.modules["__main__"], "__file__", None)
    if found is None or found.origin is None or ours is None:
        return False
    return Path(found.origin).resolve() == Path(ours).resolve()


def _home(namespace: dict[str, Any]) -> str:
    name = getattr(namespace.get("__spec__"), "name", None)
    return name if isinstance(name, str) and name not in MAIN else MAIN[0]
