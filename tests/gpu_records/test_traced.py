"""Launches in the steps of traced requests: on real Triton launches and records that a fake CUPTI writes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapter.conftest import samples_of
from tests.gpu_records.test_times import Program, X, program
from tritonprobe.gpu.analysis import Found, Known
from tritonprobe.gpu.attribution import Attribution
from tritonprobe.gpu.spans import all_in_one
from tritonprobe.gpu.traced import A_STEP, A_WINDOW, choose
from tritonprobe.ledger import HistogramSample
from tritonprobe.model import Event, GpuLaunches
from tritonprobe.requests.threads import this_thread
from tritonprobe.seen import TracedStep

__all__ = ["program"]

TRACE, OTHER = ("a" * 32, "b" * 16), ("c" * 32, "d" * 16)
HEADER = "00-{}-{}-01".format(*TRACE)


def attended(program: Program) -> list[GpuLaunches]:
    told: list[GpuLaunches] = []

    def take(event: Event) -> None:
        if isinstance(event, GpuLaunches):
            told.append(event)

    program.runtime.bus.subscribe(take)
    program.times.attend(program.runtime.live.traced_steps, program.runtime.bus.publish)
    return told


def window(program: Program, traceparent: str | None) -> list[tuple[int, int]]:
    """A window under steps of one launch each, with another launch and a pause behind each.

    Returns the steps' times, by a clock of this file's. A window that a busy machine made useless is repeated.
    """
    while not program.outcomes().get("ok"):
        thread = threading.Thread(target=lambda: program.times.window(0.05))
        steps = []
        with program.runtime.live.request("r", traceparent=traceparent) as request:
            thread.start()
            while thread.is_alive():
                before = time.monotonic_ns()
                with program.runtime.live.step([request]):
                    program.launch()
                steps.append((before, time.monotonic_ns()))
                program.launch()  # in no step
                time.sleep(0.0002)
            thread.join()
    return steps


def test_launches_in_a_traced_requests_steps_are_told_with_the_gpus_times(program: Program) -> None:
    told = attended(program)
    steps = window(program, HEADER)
    (event,) = told
    assert 0 < len(event.launches) <= A_WINDOW
    for launch in event.launches:
        assert (launch.kernel.rpartition(".")[2], launch.bucket) == ("left_kernel", "n<=16,m<=16")
        assert launch.traces == (TRACE,)
        assert launch.end_ns - launch.start_ns == 1000  # as the fake records it
        assert any(began <= launch.launched_ns <= launch.start_ns <= ended for began, ended in steps)
        assert abs(launch.unix_ns - time.time_ns()) < 60e9
    assert len({launch.start_ns for launch in event.launches}) == len(event.launches)
    matched = samples_of(program.runtime, "gpu_launches_total")["matched",]
    assert len(event.launches) + event.left_out == pytest.approx(matched / 2, abs=2)  # the others were in no step


def test_the_kernels_histogram_has_the_trace_of_the_latest(program: Program) -> None:
    told = attended(program)
    window(program, HEADER)
    (histogram,) = [s for f in program.runtime.ledger.collect() if f.metric.name == "kernel_seconds" for s in f.samples]
    assert isinstance(histogram, HistogramSample)
    assert histogram.traced is not None
    assert (histogram.traced.exemplar.trace_id, histogram.traced.exemplar.span_id) == TRACE
    assert histogram.traced.value == 1e-6
    last = max(told[0].launches, key=lambda launch: launch.end_ns)
    assert histogram.traced.unix_ns == last.unix_ns + 1000


@pytest.mark.parametrize("traceparent", [None, HEADER[:-1] + "0"])
def test_of_requests_that_nobody_samples_nothing_is_told_or_remembered(
    program: Program, traceparent: str | None
) -> None:
    told = attended(program)
    window(program, traceparent)
    assert told == []
    assert not program.runtime.live._traced_steps
    (histogram,) = [s for f in program.runtime.ledger.collect() if f.metric.name == "kernel_seconds" for s in f.samples]
    assert isinstance(histogram, HistogramSample)
    assert histogram.traced is None


def test_what_another_thread_launches_meanwhile_is_not_the_steps(program: Program) -> None:
    told = attended(program)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            program.kernel[(7,)](X, 16, 16, BLOCK=64)

    thread = threading.Thread(target=busy)
    thread.start()
    steps = window(program, HEADER)
    stop.set()
    thread.join()
    for event in told:
        for launch in event.launches:
            assert any(began <= launch.launched_ns <= ended for began, ended in steps)


STEP = st.tuples(st.integers(0, 100), st.integers(0, 60), st.sampled_from([1, 2]), st.sampled_from([TRACE, OTHER]))
LAUNCH = st.tuples(st.integers(0, 120), st.sampled_from([1, 2]), st.booleans())


@given(st.lists(STEP, max_size=6), st.lists(LAUNCH, max_size=60))
def test_each_launch_is_the_latest_steps_of_its_thread(
    drawn: list[tuple[int, int, int, tuple[str, str]]], launches: list[tuple[int, int, bool]]
) -> None:
    steps: list[TracedStep] = [(start, start + length, thread, (trace,)) for start, length, thread, trace in drawn]
    at = np.array([at for at, _, _ in launches], np.int64)
    of = np.array([-1 if trial else 0 for _, _, trial in launches], np.int64)
    nothing = np.empty(0, np.int64)
    threads = np.array([thread for _, thread, _ in launches], np.int64)
    known = Known(of, threads, at, at + 5, at + 9)
    spans = all_in_one(nothing, nothing)
    found = Found([("k", "b")], spans, Attribution([], nothing), 0, 0, spans, {}, known)
    told = choose(found, steps, 1000)
    expected = []
    for when, thread, trial in launches:
        mine = [step for step in steps if step[2] == thread and step[0] <= when < step[1]]
        if mine and not trial:
            expected.append((when, max(mine)[3]))
    assert len(told.launches) + told.left_out == len(expected)
    assert len(told.launches) <= A_WINDOW
    assert {(each.launched_ns, each.traces) for each in told.launches} <= set(expected)
    assert bool(told.launches) == bool(expected)
    for each in told.launches:
        assert (each.start_ns, each.end_ns, each.unix_ns) == (
            each.launched_ns + 5, each.launched_ns + 9, each.launched_ns + 1005,
        )  # fmt: skip
    per_step = {step: sum(step[0] <= each.launched_ns < step[1] for each in told.launches) for step in steps}
    assert all(count <= A_STEP * len(steps) for count in per_step.values())


def test_a_step_under_way_counts_up_to_now(program: Program) -> None:
    live = program.runtime.live
    request = live.request("r", traceparent=HEADER)
    step = live.step([request]).begin()
    now = time.monotonic_ns()
    assert live.traced_steps(0, now) == [(step.start_ns, now, this_thread(), (TRACE,))]
    assert live.traced_steps(0, step.start_ns) == []
    step.end()
    ((start, end, thread, traces),) = live.traced_steps(0, now + 10**9)
    assert (start, thread, traces) == (step.start_ns, this_thread(), (TRACE,))
    assert now <= end
    assert live.traced_steps(end, end + 1) == []
    request.finish()
