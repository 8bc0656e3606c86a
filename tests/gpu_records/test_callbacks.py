"""What CUPTI calls, in C: buffers are lent, come back, and no two are the same at one time; and it is left once."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tritonprobe import native
from tritonprobe.gpu.cupti import CALLBACKS_SOURCE

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")
SIZE, COUNT = 4096, 8
PLACE = ctypes.c_void_p
NUMBER = ctypes.c_size_t


@pytest.fixture
def callbacks(tmp_path: Path) -> ModuleType:
    """A build of its own, whose memory is its own, too: the process's is CUPTI's."""
    copy = tmp_path / "callbacks.c"
    copy.write_text(f"{CALLBACKS_SOURCE.read_text()}/* {tmp_path} */\n")
    module = native.load(copy)
    assert module is not None
    return module


def taken(callbacks: Any) -> list[bytes]:
    """Everything that came back, read and put back."""
    found = [bytes(view) for view in callbacks.take()]
    callbacks.put_back()
    return found


class Cupti:
    """What CUPTI does with the two callbacks."""

    def __init__(self, callbacks: Any) -> None:
        self.requested = ctypes.CFUNCTYPE(None, PLACE, PLACE, PLACE)(callbacks.REQUESTED)
        self.completed = ctypes.CFUNCTYPE(None, PLACE, ctypes.c_uint32, PLACE, NUMBER, NUMBER)(callbacks.COMPLETED)

    def lend(self) -> int | None:
        """Wants a buffer."""
        buffer, size, most = PLACE(1), NUMBER(1), NUMBER(1)
        self.requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        assert most.value == 0
        assert size.value == (SIZE if buffer.value else 0)
        return buffer.value

    def give_back(self, buffer: int, data: bytes) -> None:
        ctypes.memmove(buffer, data, len(data))
        self.completed(None, 0, buffer, SIZE, len(data))


def test_bytes_come_back_in_order(callbacks: Any) -> None:
    callbacks.set_up(SIZE, COUNT)
    cupti = Cupti(callbacks)
    first, second, third = (cupti.lend() or 0 for _ in range(3))
    assert callbacks.counts() == (3, 3, 0)
    cupti.give_back(second, b"second")
    cupti.give_back(first, b"first")
    cupti.give_back(third, b"")  # returned empty
    assert callbacks.counts() == (3, 0, 0)
    assert taken(callbacks) == [b"second", b"first"]
    assert taken(callbacks) == []


def test_what_is_read_is_not_lent_meanwhile(callbacks: Any) -> None:
    callbacks.set_up(SIZE, 2)
    cupti = Cupti(callbacks)
    first, second = (cupti.lend() or 0 for _ in range(2))
    cupti.give_back(first, b"first")
    (view,) = callbacks.take()
    cupti.give_back(second, b"second")  # comes too late
    assert cupti.lend() is None
    assert view == b"first"
    callbacks.put_back()
    assert cupti.lend() == first
    assert taken(callbacks) == [b"second"]


def test_buffers_are_aligned_and_bounded(callbacks: Any) -> None:
    callbacks.set_up(SIZE, COUNT)
    cupti = Cupti(callbacks)
    lent = [cupti.lend() or 1 for _ in range(COUNT)]
    assert len(set(lent)) == COUNT
    assert all(buffer % 8 == 0 for buffer in lent)
    assert cupti.lend() is None
    assert callbacks.counts() == (COUNT, COUNT, 1)
    cupti.give_back(lent[3], b"x")
    taken(callbacks)
    assert cupti.lend() == lent[3]


def test_before_it_is_set_up_there_is_no_buffer(callbacks: Any) -> None:
    assert Cupti(callbacks).requested is not None
    buffer, size, most = PLACE(1), NUMBER(1), NUMBER(1)
    Cupti(callbacks).requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
    assert (buffer.value, size.value) == (None, 0)
    assert taken(callbacks) == []


def test_a_buffer_that_is_not_ours_is_left_alone(callbacks: Any) -> None:
    callbacks.set_up(SIZE, COUNT)
    Cupti(callbacks).completed(None, 0, 4096, SIZE, 8)
    assert taken(callbacks) == []
    assert callbacks.counts() == (0, 0, 0)


def test_it_is_set_up_once(callbacks: Any) -> None:
    for size, count in ((0, 1), (12, 1), (8, 0), (1 << 62, 1 << 62)):
        with pytest.raises((ValueError, OverflowError)):
            callbacks.set_up(size, count)
    callbacks.set_up(SIZE, COUNT)
    callbacks.set_up(SIZE, COUNT)
    with pytest.raises(ValueError, match="set up already"):
        callbacks.set_up(SIZE, COUNT + 1)


def test_many_threads_never_share_a_buffer(callbacks: Any) -> None:
    callbacks.set_up(SIZE, 64)
    counts: list[int] = []

    def cupti(number: int) -> None:
        mine, done = Cupti(callbacks), 0
        for _ in range(3000):
            buffer = mine.lend()
            if buffer is not None:
                mine.give_back(buffer, f"{number} {done}".encode())
                done += 1
        counts.append(done)

    threads = [threading.Thread(target=cupti, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    found: list[bytes] = []
    while any(thread.is_alive() for thread in threads):
        found += taken(callbacks)
    found += taken(callbacks)
    assert callbacks.counts()[1] == 0
    assert len(found) == len(set(found)) == sum(counts)


def test_it_is_left_once_and_at_the_exit_of_a_call(callbacks: Any) -> None:
    left: list[None] = []

    @ctypes.CFUNCTYPE(ctypes.c_int)
    def finalize() -> int:
        left.append(None)
        return 7

    tell = ctypes.CFUNCTYPE(None, PLACE, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int))(callbacks.LEAVE)
    enter, leave = ctypes.c_int(0), ctypes.c_int(1)
    tell(None, 1, 2, leave)
    assert callbacks.left() == -1
    callbacks.leave_with(ctypes.cast(finalize, PLACE).value)
    tell(None, 1, 2, enter)
    assert not left
    tell(None, 1, 2, leave)
    tell(None, 1, 2, leave)
    assert len(left) == 1
    assert callbacks.left() == 7


def test_what_was_not_left_in_time_is_not_left_later(callbacks: Any) -> None:
    finalize = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: pytest.fail("it was called"))
    tell = ctypes.CFUNCTYPE(None, PLACE, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int))(callbacks.LEAVE)
    callbacks.leave_with(ctypes.cast(finalize, PLACE).value)
    assert callbacks.left() == -1
    tell(None, 1, 2, ctypes.c_int(1))
