"""What is asked of libcupti itself; without a GPU it loads and reads records all the same."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.gpu_records.fake_gpu import CUDA_12, raw
from tritonprobe.gpu.cupti import Cupti, CuptiError


def test_a_records_size_is_learnt_from_the_first_two(cupti: Cupti) -> None:
    assert cupti._learn([raw([{"correlation": 1}, {"correlation": 2}, {"correlation": 3}], CUDA_12)]) == CUDA_12


def test_a_record_of_another_thread_may_come_first_and_alone(cupti: Cupti) -> None:
    theirs, ours = raw([{"correlation": 7}], CUDA_12), raw([{"correlation": n} for n in range(8, 12)], CUDA_12)
    assert cupti._learn([theirs, ours]) == CUDA_12


def test_one_record_teaches_nothing(cupti: Cupti) -> None:
    with pytest.raises(CuptiError, match="208 bytes hold 1 record, expected 4"):
        cupti._learn([raw([{}], CUDA_12)])


def test_two_clocks_are_read_together_though_other_threads_compute(
    cupti: Cupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call comes back late now and then: it had to wait for the interpreter's lock."""
    theirs, ours = cupti._both_clocks()
    calls = 0

    class Late:
        def __getattr__(self, name: str) -> Any:
            function = getattr(lib, name)

            def call(*arguments: Any) -> int:
                nonlocal calls
                calls += 1
                code: int = function(*arguments)
                if calls % 3:
                    time.sleep(0.03)
                return code

            return call

    lib = cupti._lib
    monkeypatch.setattr(cupti, "_lib", Late())
    later_theirs, later_ours = cupti._both_clocks()
    assert abs((later_theirs - later_ours) - (theirs - ours)) < 1_000_000
