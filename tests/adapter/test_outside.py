"""`cold_call`: another compiler's stall is timed, counted and charged like Triton's."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import tritonprobe
from tests.adapter.conftest import interrupted, samples_of, total_of
from tritonprobe import cold_call
from tritonprobe.adapter.calls import OpenCall
from tritonprobe.adapter.outside import MAX_KINDS
from tritonprobe.runtime import Runtime


def test_a_stall_of_known_length_is_one_cold_call_of_that_length(runtime: Runtime) -> None:
    begin = time.monotonic()
    with cold_call("deep_gemm.fp8", kind="jit"):
        time.sleep(0.05)
    took = time.monotonic() - begin
    (call,) = runtime.cold_calls
    assert (call.kernel, call.kind, call.tier, call.bucket) == ("deep_gemm.fp8", "jit", "compile", "all")
    assert 0.05 <= call.wall_ns / 1e9 <= took
    assert dict(call.phases)["jit"] / 1e9 == pytest.approx(call.wall_ns / 1e9, abs=0.001)
    assert samples_of(runtime, "cold_seconds_total")["deep_gemm.fp8", "jit", "0"] == pytest.approx(
        call.wall_ns / 1e9, abs=0.001
    )


def test_it_needs_neither_triton_nor_instrument(runtime: Runtime) -> None:
    assert not runtime.adapter._on
    with cold_call("x"):
        pass
    assert len(runtime.cold_calls) == 1


def test_requests_that_wait_are_charged(runtime: Runtime) -> None:
    with tritonprobe.request(model="m") as request:
        with tritonprobe.step([request]), cold_call("nvcc", kind="jit"):
            time.sleep(0.03)
        request.token()
    (cost,) = runtime.requests
    assert cost.before.in_batch_ns == runtime.cold_calls[0].wall_ns


def test_the_tier_may_be_told(runtime: Runtime) -> None:
    with cold_call("flashinfer.decode", kind="flashinfer") as call:
        call.tier = "disk"
    assert runtime.cold_calls[0].tier == "disk"


def test_after_ready_it_is_an_incident(runtime: Runtime) -> None:
    tritonprobe.ready()
    with cold_call("x", kind="jit"):
        pass
    assert samples_of(runtime, "cold_calls_after_ready_total")[("compile",)] == 1


def test_its_exception_goes_on_unchanged_and_names_it(runtime: Runtime) -> None:
    error = KeyError("nvcc")
    with pytest.raises(KeyError) as raised, cold_call("x", kind="jit"):
        raise error
    assert raised.value is error
    assert runtime.cold_calls[0].error == "KeyError"


def test_one_inside_another_counts_no_second_twice(runtime: Runtime) -> None:
    with cold_call("outer", kind="jit"):
        time.sleep(0.01)
        with cold_call("inner", kind="nvcc"):
            time.sleep(0.02)
    (call,) = runtime.cold_calls
    phases = dict(call.phases)
    assert sum(phases.values()) == call.wall_ns
    assert phases["nvcc"] >= 0.02e9
    assert phases["jit"] < phases["nvcc"]


def test_what_triton_compiles_inside_is_part_of_it(instrumented: Runtime, add) -> None:
    with cold_call("engine.warm_up", kind="jit"):
        add(*[FakeTensor()] * 3, 128)
    (call,) = instrumented.cold_calls
    assert call.kernel == "engine.warm_up"
    assert call.tier == "compile"
    assert "ptx" in dict(call.phases)
    assert sum(ns for _, ns in call.phases) == call.wall_ns


def test_threads_have_a_call_each(runtime: Runtime) -> None:
    def stall() -> None:
        with cold_call("x", kind="jit"):
            time.sleep(0.02)

    threads = [threading.Thread(target=stall) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({call.thread for call in runtime.cold_calls}) == len(runtime.cold_calls) == 4


@pytest.mark.parametrize("kind", ["compile", "triton", "Upper", "", "a b", "x" * 33, 7, None])
def test_a_kind_that_can_be_none_is_other_and_counted(runtime: Runtime, kind, caplog: pytest.LogCaptureFixture) -> None:
    with cold_call("x", kind=kind):
        pass
    assert runtime.cold_calls[0].kind == "other"
    assert samples_of(runtime, "errors_total") == {("cold_call",): 1}
    given = "a NoneType" if kind is None else "a int" if kind == 7 else repr(kind) if len(kind) < 30 else "'xxx"
    assert f"cold_call: {given}" in caplog.text
    assert " is no kind, and counted as 'other'; expected a word of a-z" in caplog.text
    runtime.ledger.cell(tritonprobe.ledger.schema.ERRORS, ("cold_call",))[0] = 0  # meant, and looked at


def test_kinds_are_bounded(runtime: Runtime) -> None:
    for i in range(MAX_KINDS + 3):
        with cold_call("x", kind=f"kind{i}"):
            pass
    assert total_of(runtime, "errors_total") == 3
    assert len({call.kind for call in runtime.cold_calls}) == MAX_KINDS + 1
    runtime.ledger.cell(tritonprobe.ledger.schema.ERRORS, ("cold_call",))[0] = 0


def test_a_block_that_ends_on_another_thread_is_a_fault_of_the_caller_and_breaks_nothing(runtime: Runtime) -> None:
    block = cold_call("x", kind="jit")
    thread = threading.Thread(target=block.__enter__)
    thread.start()
    thread.join()
    block.__exit__(None, None, None)
    assert not runtime.cold_calls
    assert samples_of(runtime, "errors_total") == {("cold_call",): 1}
    runtime.ledger.cell(tritonprobe.ledger.schema.ERRORS, ("cold_call",))[0] = 0


class FakeTensor:
    """What Triton asks of a tensor."""

    import torch

    dtype = torch.float32

    def data_ptr(self) -> int:
        return 1 << 20


def test_one_that_is_over_is_gone_without_the_collector(runtime: Runtime) -> None:
    gc.collect()
    gc.disable()
    try:
        with cold_call("x", kind="jit"):
            open_now = sum(type(each) is OpenCall for each in gc.get_objects())
        assert (open_now, sum(type(each) is OpenCall for each in gc.get_objects())) == (1, 0)
    finally:
        gc.enable()


def test_one_whose_thread_ends_without_leaving_it_holds_up_nobody(runtime: Runtime) -> None:
    def leaves_it_open() -> None:
        with tritonprobe.step(()):
            pass
        cold_call("never ends", kind="jit").__enter__()

    thread = threading.Thread(target=leaves_it_open)
    thread.start()
    thread.join()
    del thread
    watch = runtime.adapter.launches.ends.watch
    assert len(watch.slow) == len(watch.any) == 1
    with tritonprobe.request("m") as request, tritonprobe.step([request]):
        request.token()
    (cost,) = runtime.requests
    assert (cost.before.in_batch_ns, cost.before.queued_ns, cost.after.in_batch_ns) == (0, 0, 0)
    assert watch.slow == watch.any == []
    assert samples_of(runtime, "cold_call_start_timestamp_seconds") == {}
    assert not runtime.cold_calls
    assert samples_of(runtime, "errors_total") == {("cold_call",): 1}
    runtime.ledger.cell(tritonprobe.ledger.schema.ERRORS, ("cold_call",))[0] = 0


def test_wherever_one_is_interrupted_the_next_one_is_a_cold_call(runtime: Runtime) -> None:
    def stall() -> None:
        with cold_call("interrupted", kind="jit"):
            pass

    stall()
    ours = ("__enter__", "begin", "_open", "begin_slow", "end_slow", "close", "enter", "leave")
    event = 1
    while interrupted(stall, event, *ours):
        with cold_call(f"next {event}", kind="jit"):
            pass
        assert runtime.cold_calls[-1].kernel == f"next {event}"
        assert runtime.adapter._watch.any == runtime.adapter._watch.slow == []
        event += 1
    assert event > 10
