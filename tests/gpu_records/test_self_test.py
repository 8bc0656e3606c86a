"""The self-test, on records that come back as CUPTI gives them: in buffers, some of them full of other threads'."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu_records.fake_gpu import CUDA_12, Names, raw
from tritonprobe.gpu import cupti as cupti_module
from tritonprobe.gpu.cupti import BUFFER, FORCED, Cupti, CuptiError
from tritonprobe.gpu.driver import MARK

PLACE = c.c_void_p


class Gpu:
    """What libcupti does for kernels that are launched: each thread's records have a buffer of their own."""

    def __init__(self, cupti: Cupti) -> None:
        self._lib = cupti._lib
        callbacks = cupti._callbacks
        self._requested = c.CFUNCTYPE(None, PLACE, PLACE, PLACE)(callbacks.REQUESTED)
        self._completed = c.CFUNCTYPE(None, PLACE, c.c_uint32, PLACE, c.c_size_t, c.c_size_t)(callbacks.COMPLETED)
        self._lent: dict[int, int] = {}  # by thread
        self._rows: dict[int, list[dict[str, int]]] = {}
        self._on = False
        self.last = 0  # correlation id
        self.names = Names()
        self.beside: Callable[[], None] = lambda: None  # what other threads do between two launches

    def launch(self, name: str, x: int, thread: int = 0, done: bool = True, **more: int) -> None:
        self.last += 1
        if not self._on:
            return
        if thread not in self._lent:
            buffer, size, most = PLACE(), c.c_size_t(), c.c_size_t()
            self._requested(c.byref(buffer), c.byref(size), c.byref(most))
            assert buffer.value is not None
            self._lent[thread] = buffer.value
        now = self.now() if done else 0
        row = {"name": self.names.address(name), "x": x, "correlation": self.last % 2**32, "start": now, "end": now}
        self._rows.setdefault(thread, []).append({**row, **more})

    def now(self) -> int:
        found = c.c_uint64()
        self._lib.cuptiGetTimestamp(c.byref(found))
        return found.value

    def cuptiActivityEnable(self, kind: int) -> int:
        self._on = True
        self.beside()
        return 0

    def cuptiActivityDisable(self, kind: int) -> int:
        self._on = False
        return 0

    def cuptiActivityFlushAll(self, flag: int) -> int:
        for thread, buffer in list(self._lent.items()):
            rows = self._rows[thread]
            if flag == FORCED or all(row["end"] for row in rows):
                data = raw(rows, CUDA_12).tobytes()
                c.memmove(buffer, data, len(data))
                del self._lent[thread], self._rows[thread]
                self._completed(None, 0, buffer, BUFFER, len(data))
        return 0

    def cuptiActivityRegisterCallbacks(self, *_: object) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


@pytest.fixture
def gpu(cupti: Cupti, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu(cupti)
    monkeypatch.setattr(cupti, "_lib", gpu)
    monkeypatch.setattr(cupti, "stride", 0)
    monkeypatch.setattr(cupti_module, "_TEST_SECONDS", 0.05)

    def launch(blocks: int) -> None:
        gpu.launch(MARK, blocks)
        gpu.beside()

    marker = SimpleNamespace(launch=launch, finish=lambda: None, close=lambda: None)
    monkeypatch.setattr(cupti_module, "Marker", lambda driver, device: marker)
    yield gpu
    assert cupti.outstanding == 0
    assert cupti.use.acquire(blocking=False)
    cupti.discard()


def test_it_passes(cupti: Cupti, gpu: Gpu) -> None:
    cupti.test(None, 0)  # type: ignore[arg-type]  # a fake marker asks no driver
    assert cupti.stride == CUDA_12


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kernels", [1, 40])
def test_it_passes_beside_threads_that_launch(cupti: Cupti, gpu: Gpu, threads: int, kernels: int) -> None:
    def beside() -> None:
        for thread in range(1, threads + 1):
            for x in range(kernels):
                gpu.launch("theirs", x, thread, graph=thread, node=x)

    gpu.beside = beside
    cupti.test(None, 0)  # type: ignore[arg-type]
    assert cupti.stride == CUDA_12


def test_it_passes_beside_a_kernel_that_goes_on(cupti: Cupti, gpu: Gpu) -> None:
    gpu.beside = lambda: gpu.launch("endless", 1, 1, done=False)
    cupti.test(None, 0)  # type: ignore[arg-type]
    assert cupti.stride == CUDA_12


def test_it_passes_as_correlation_ids_begin_again(cupti: Cupti, gpu: Gpu) -> None:
    gpu.last = 2**32 - 4
    cupti.test(None, 0)  # type: ignore[arg-type]
    assert gpu.last > 2**32


@pytest.mark.parametrize("extra", [0, 5])
def test_other_grids_than_those_launched_fail_it(cupti: Cupti, gpu: Gpu, extra: int) -> None:
    """One mark too many, or all of them without a grid."""
    gpu.beside = lambda: gpu.launch(MARK, extra)
    with pytest.raises(CuptiError, match=r"self-test: launched grids \(3, 1, 2, 5\), and \d+ records show"):
        cupti.test(None, 0)  # type: ignore[arg-type]


def test_records_of_another_time_fail_it(cupti: Cupti, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "now", lambda: 1)
    with pytest.raises(CuptiError, match="self-test: records lie at"):
        cupti.test(None, 0)  # type: ignore[arg-type]


def test_what_cannot_be_left_is_not_subscribed_to(cupti: Cupti, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def call(name: str, code: int) -> Callable[..., int]:
        return lambda *_: called.append(name) or code  # type: ignore[func-returns-value]

    for name, code in (("cuptiSubscribe", 0), ("cuptiEnableCallback", 1), ("cuptiUnsubscribe", 0)):
        monkeypatch.setattr(gpu, name, call(name, code), raising=False)
    monkeypatch.setattr(cupti, "attached", True)
    with pytest.raises(CuptiError, match="cuptiEnableCallback"):
        cupti.leave(None)  # type: ignore[arg-type]
    assert called == ["cuptiSubscribe", "cuptiEnableCallback", "cuptiUnsubscribe"]


def test_no_record_fails_it(cupti: Cupti, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cuptiActivityEnable", lambda kind: 0)  # they go to another profiler
    with pytest.raises(CuptiError, match="self-test: 4 launches left no record"):
        cupti.test(None, 0)  # type: ignore[arg-type]
