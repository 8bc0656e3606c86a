"""Memory at an address that never changes, over which a file can be laid: why cells outlive a fork.

The only module that asks the C library for mappings. Python's own `mmap` cannot change what stands behind a buffer that
is in use; ``mmap(MAP_FIXED)`` can. So whoever holds a view of the region goes on with it, and after a fork the child
lays a file of its own where its parent's was.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_MAP_FIXED = 0x10  # Linux; Python does not name it
_FAILED = ctypes.c_void_p(-1).value

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class Region:
    """`size` bytes of this process's memory, zero at first; a whole number of pages."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._size = size
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.view = memoryview(self._memory)

    def lay(self, handle: int) -> None:
        """From now on every view shows the file behind `handle`, which must be fully allocated. Raises OSError."""
        self._map(mmap.MAP_SHARED | _MAP_FIXED, handle)

    def lift(self) -> None:
        """From now on every view shows zeros that belong to this process alone. Raises OSError."""
        self._map(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1)

    def _map(self, flags: int, handle: int) -> None:
        if _mmap(self._address, self._size, mmap.PROT_READ | mmap.PROT_WRITE, flags, handle, 0) == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
