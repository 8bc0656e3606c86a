"""The living objects of a class, found by the garbage collector and in modules. Knows nothing else of tritonprobe."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def instances(*classes: type) -> list[Any]:
    """Every object of these classes and of their subclasses that the collector knows, and that is not frozen.

    Asks for what refers to a class, as each of its objects does, and not for all objects: a list of all of them holds a
    reference to what other threads are just making, and a tuple that is being made must have one only (CPython raises
    SystemError in that thread).
    """
    wanted: dict[type, None] = {}
    left = list(classes)
    while left:
        each = left.pop()
        if each not in wanted:
            wanted[each] = None
            left += type.__subclasses__(each)
    return [found for found in gc.get_referrers(*wanted) if type(found) in wanted]


def in_modules(kind: type) -> Iterator[Any]:
    """What modules hold by a name, of this class and its subclasses: also what `gc.freeze` hides from the collector."""
    for module in list(sys.modules.values()):
        if not issubclass(type(module), ModuleType):
            continue
        names = object.__getattribute__(module, "__dict__")  # asking a lazy module itself would load it
        yield from [value for value in list(names.values()) if issubclass(type(value), kind)]
