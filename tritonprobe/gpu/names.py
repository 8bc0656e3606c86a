"""Kernels' names as people write them. Knows C++'s mangling through libstdc++."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger("tritonprobe")


def readable(name: str) -> str:
    """A function's name as it is written: demangled, without arguments; template arguments are left out."""
    if name.startswith("_Z"):
        try:
            library = ctypes.CDLL("libstdc++.so.6")
            demangle = library["__cxa_demangle"]
            demangle.restype = ctypes.c_void_p
            demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
            status = ctypes.c_int()
            found = demangle(name.encode(), None, None, ctypes.byref(status))
            if found:
                name = ctypes.string_at(found).decode(errors="replace")
                free = ctypes.CDLL(None).free
                free.argtypes = (ctypes.c_void_p,)
                free(found)
        except (OSError, AttributeError):
            log.debug("tritonprobe: %s cannot be demangled", name)
    depth = 0
    kept: list[str] = []
    anonymous = "(anonymous namespace)"
    for letter in name.removeprefix("void ").replace(anonymous, "{}"):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and kept:
            break
        elif depth == 0:
            kept.append(letter)
    return "".join(kept).strip().replace("{}", anonymous) or name
