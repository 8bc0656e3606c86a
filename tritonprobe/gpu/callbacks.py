"""CUPTI's two buffer callbacks, in C. No Python runs in them: a callback that waited for the interpreter's lock inside
one of CUPTI's own could stand still for ever with a thread that launches while it holds that lock (seen on a GPU).

A few lines of C, compiled when they are first needed, in a folder of their own that is gone afterwards. Buffers lie in
one block of memory; a buffer is free, lent to CUPTI, or full, and changes state by one atomic step. Nothing is
allocated and nothing waits. Where there is no C compiler there are no callbacks.
"""

from __future__ import annotations

import ctypes as c
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

enum { FREE, LENT, FULL };

static uint8_t *base;
static size_t size, count;
static int32_t *state;
static uint64_t *valid, *order;
static uint64_t turn, lent, back, declined;

void tp_set_up(uint8_t *memory, size_t bytes, size_t buffers, int32_t *states, uint64_t *sizes, uint64_t *orders) {
    base = memory; size = bytes; count = buffers; state = states; valid = sizes; order = orders;
}

void tp_requested(uint8_t **buffer, size_t *bytes, size_t *most) {
    *buffer = NULL; *bytes = 0; *most = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t expected = FREE;
        if (__atomic_compare_exchange_n(&state[i], &expected, LENT, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            *buffer = base + i * size; *bytes = size;
            __atomic_add_fetch(&lent, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    __atomic_add_fetch(&declined, 1, __ATOMIC_RELAXED);
}

void tp_completed(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t used) {
    (void)context; (void)stream; (void)bytes;
    if (buffer < base || buffer >= base + count * size) return;
    size_t i = (size_t)(buffer - base) / size;
    valid[i] = used;
    order[i] = __atomic_add_fetch(&turn, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&state[i], used ? FULL : FREE, __ATOMIC_RELEASE);
    __atomic_add_fetch(&back, 1, __ATOMIC_RELEASE);
}

int tp_is_full(size_t i) { return __atomic_load_n(&state[i], __ATOMIC_ACQUIRE) == FULL; }
void tp_release(size_t i) { __atomic_store_n(&state[i], FREE, __ATOMIC_RELEASE); }
uint64_t tp_outstanding(void) {
    uint64_t returned = __atomic_load_n(&back, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&lent, __ATOMIC_ACQUIRE) - returned;
}
uint64_t tp_lent(void) { return __atomic_load_n(&lent, __ATOMIC_ACQUIRE); }
uint64_t tp_declined(void) { return __atomic_exchange_n(&declined, 0, __ATOMIC_ACQ_REL); }
void tp_ignore(void *user, int domain, uint32_t event, const void *data) {
    (void)user; (void)domain; (void)event; (void)data;
}
"""
COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS = 60


class CompilerError(RuntimeError):
    """Why the callbacks could not be made; one line."""


class Callbacks:
    """The compiled callbacks and their buffers: `buffers` of `size` bytes. Never freed, for CUPTI knows them.

    Raises CompilerError. One a process: the C side has one set of buffers.
    """

    def __init__(self, size: int, buffers: int) -> None:
        self._lib = lib = _compiled()
        p, n, u = c.c_void_p, c.c_size_t, c.c_uint64
        for name, arguments, result in (
            ("tp_set_up", (p, n, n, p, p, p), None),
            ("tp_requested", (p, p, p), None),
            ("tp_completed", (p, c.c_uint32, p, n, n), None),
            ("tp_is_full", (n,), c.c_int),
            ("tp_release", (n,), None),
            ("tp_outstanding", (), u),
            ("tp_lent", (), u),
            ("tp_declined", (), u),
        ):
            function = getattr(lib, name)
            function.argtypes, function.restype = arguments, result
        self._size, self._count = size, buffers
        # Pages are used as buffers are: the lowest free one is lent first.
        self._memory: npt.NDArray[np.uint8] = np.zeros(size * buffers // 8, np.uint64).view(np.uint8)
        self._state = np.zeros(buffers, np.int32)
        self._valid = np.zeros(buffers, np.uint64)
        self._order = np.zeros(buffers, np.uint64)
        lib.tp_set_up(
            self._memory.ctypes.data, size, buffers,
            self._state.ctypes.data, self._valid.ctypes.data, self._order.ctypes.data,
        )  # fmt: skip
        self.requested = c.cast(lib.tp_requested, p)
        self.completed = c.cast(lib.tp_completed, p)
        self.ignore = c.cast(lib.tp_ignore, p)

    @property
    def outstanding(self) -> int:
        """Buffers that CUPTI holds."""
        return int(self._lib.tp_outstanding())

    @property
    def lent(self) -> int:
        """Buffers lent so far."""
        return int(self._lib.tp_lent())

    def declined(self) -> int:
        """Requests that found no free buffer, since the last call."""
        return int(self._lib.tp_declined())

    def take(self) -> list[npt.NDArray[np.uint8]]:
        """The full buffers' bytes, in the order they came back; they are free again."""
        full = [i for i in range(self._count) if self._lib.tp_is_full(i)]
        full.sort(key=lambda i: int(self._order[i]))
        taken = []
        for i in full:
            start = i * self._size
            taken.append(self._memory[start : start + int(self._valid[i])].copy())
            self._lib.tp_release(i)
        return taken


def _compiled() -> c.CDLL:
    named = os.environ.get("CC", "").split()
    compiler = named or [found for name in COMPILERS if (found := shutil.which(name))][:1]
    if not compiler:
        raise CompilerError(f"no C compiler: none of {', '.join(COMPILERS)} is on the PATH, and CC names none")
    with tempfile.TemporaryDirectory(prefix="tritonprobe-") as folder:  # for this user alone
        source, library = Path(folder, "callbacks.c"), Path(folder, "callbacks.so")
        source.write_text(SOURCE)
        command = [*compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"{compiler[0]}: {error}") from None
        if made.returncode:
            said = made.stderr.strip().splitlines()
            raise CompilerError(f"{compiler[0]} failed: {said[-1] if said else f'exit code {made.returncode}'}")
        try:
            return c.CDLL(str(library))
        except OSError as error:
            raise CompilerError(f"the callbacks cannot be loaded: {error}") from None
