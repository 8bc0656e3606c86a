"""The C callbacks that CUPTI calls: buffers are lent, come back, and no two are the same at one time."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest

from tritonprobe.gpu.callbacks import Callbacks, CompilerError

SIZE, COUNT = 4096, 8


@pytest.fixture
def callbacks() -> Callbacks:
    return Callbacks(SIZE, COUNT)


def lend(callbacks: Callbacks) -> int | None:
    """What CUPTI does when it wants a buffer."""
    buffer, size, most = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(1)
    callbacks._lib.tp_requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
    assert most.value == 0
    assert size.value == (SIZE if buffer.value else 0)
    return buffer.value


def give_back(callbacks: Callbacks, buffer: int, data: bytes) -> None:
    ctypes.memmove(buffer, data, len(data))
    callbacks._lib.tp_completed(None, 0, buffer, SIZE, len(data))


def test_bytes_come_back_in_order(callbacks: Callbacks) -> None:
    first, second, third = (lend(callbacks) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert callbacks.outstanding == 3
    give_back(callbacks, second, b"second")
    give_back(callbacks, first, b"first")
    give_back(callbacks, third, b"")  # returned empty
    assert callbacks.outstanding == 0
    assert [chunk.tobytes() for chunk in callbacks.take()] == [b"second", b"first"]
    assert callbacks.take() == []


def test_buffers_are_aligned_and_bounded(callbacks: Callbacks) -> None:
    lent = [lend(callbacks) for _ in range(COUNT)]
    assert len(set(lent)) == COUNT
    assert all(buffer is not None and buffer % 8 == 0 for buffer in lent)
    assert lend(callbacks) is None
    assert callbacks.declined() == 1
    assert callbacks.declined() == 0
    give_back(callbacks, int(lent[3] or 0), b"x")
    callbacks.take()
    assert lend(callbacks) == lent[3]


def test_a_buffer_that_is_not_ours_is_left_alone(callbacks: Callbacks) -> None:
    callbacks._lib.tp_completed(None, 0, 4096, SIZE, 8)
    assert callbacks.take() == []


def test_many_threads_never_share_a_buffer() -> None:
    callbacks = Callbacks(SIZE, 64)
    counts: list[int] = []

    def cupti(number: int) -> None:
        done = 0
        for _ in range(3000):
            buffer = lend(callbacks)
            if buffer is not None:
                give_back(callbacks, buffer, np.array([number, done], np.int64).tobytes())
                done += 1
        counts.append(done)

    threads = [threading.Thread(target=cupti, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    while any(thread.is_alive() for thread in threads):
        taken += [tuple(chunk.view(np.int64).tolist()) for chunk in callbacks.take()]
    taken += [tuple(chunk.view(np.int64).tolist()) for chunk in callbacks.take()]
    assert callbacks.outstanding == 0
    assert len(taken) == len(set(taken)) == sum(counts)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError, match="no C compiler: none of cc, gcc, clang"):
        Callbacks(SIZE, COUNT)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError, match="no-such-compiler"):
        Callbacks(SIZE, COUNT)
