"""Live requests: what a server writes, and what it learns. Time is a number that the test turns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tritonprobe.bus import Bus
from tritonprobe.model import Event, Exposure, Parts, RequestCost
from tritonprobe.requests import LiveRequest, Requests, Step, live, windows
from tritonprobe.requests.exposure import difference, exposure, parts, union
from tritonprobe.requests.threads import this_thread

HERE = this_thread()
ELSEWHERE = -2  # no thread's number


class Server:
    """A server with a clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = 0
        self.errors: list[str] = []
        self.client_errors: list[str] = []
        self.open: list[tuple[int, int]] = []
        self.finished: list[RequestCost] = []
        bus = Bus()
        bus.subscribe(self._take)
        self.requests = Requests(
            bus,
            clock=lambda: self.now,
            unix_clock=lambda: 1_700_000_000_000_000_000 + self.now,
            on_error=self.errors.append,
            on_client_error=self.client_errors.append,
            open_stalls=lambda: self.open,
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestCost):  # an op's fallback is an event, too, while a request is traced
            self.finished.append(event)

    def at(self, now: int) -> Server:
        self.now = now
        return self

    @contextmanager
    def cold_call(self, start: int, end: int, thread: int = HERE) -> Iterator[None]:
        """A cold call: in progress inside the block, reported at its end, as the runtime does it."""
        self.at(start).open.append((start, thread))
        yield
        self.at(end).requests.stall(start, end, thread)
        self.open.remove((start, thread))

    def stall(self, start: int, end: int, thread: int = HERE) -> None:
        with self.cold_call(start, end, thread):
            pass


@pytest.fixture
def server() -> Server:
    return Server()


# What a server writes


def test_a_request_from_arrival_to_end(server: Server):
    with server.at(100).requests.request("r1", model="tiny") as r:
        server.at(400)
        r.token()
        server.at(900)
        r.token(4)
        server.at(1000)
    assert server.finished == [
        RequestCost(
            id="r1",
            model="tiny",
            start_ns=100,
            first_token_ns=400,
            end_ns=1000,
            unix_ns=1_700_000_000_000_000_000 + 100,
            tokens=5,
        )
    ]
    assert server.finished[0].ttft_ns == 300
    assert server.finished[0].tpot_ns == 150
    assert server.errors == []


def test_what_did_not_happen_is_absent(server: Server):
    with server.requests.request() as r:
        pass
    assert r.id == server.finished[0].id
    assert server.finished[0].first_token_ns is None
    assert server.finished[0].ttft_ns is None
    assert server.finished[0].tpot_ns is None


def test_requests_without_an_id_are_numbered(server: Server):
    for _ in range(2):
        server.requests.request().finish()
    assert [cost.id for cost in server.finished] == ["request-1", "request-2"]


def test_texts_are_bounded(server: Server):
    server.requests.request("i" * 999, model="m" * 999).finish("e" * 999)
    cost = server.finished[0]
    assert (len(cost.id), len(cost.model), len(cost.error or "")) == (128, 128, 128)


def test_the_servers_own_exception_goes_on_and_is_named(server: Server):
    fault = KeyError("theirs")
    with pytest.raises(KeyError) as raised, server.requests.request():
        raise fault
    assert raised.value is fault
    assert server.finished[0].error == "KeyError"


def test_an_engines_exception_goes_through_a_step(server: Server):
    r = server.requests.request()
    with pytest.raises(ZeroDivisionError), server.requests.step([r]):
        raise ZeroDivisionError
    assert server.finished == []
    r.finish(error="engine_died")
    assert server.finished[0].error == "engine_died"


def test_a_cancelled_task_finishes_its_request(server: Server):
    async def main() -> None:
        async def handler() -> None:
            with server.requests.request():
                await asyncio.Event().wait()

        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert server.finished[0].error == "CancelledError"


def test_finishing_by_hand_inside_the_block_is_fine(server: Server):
    with server.requests.request() as r:
        r.finish(error="client_gone")
    assert [cost.error for cost in server.finished] == ["client_gone"]
    assert server.errors == []


# What it learns


def test_a_stall_in_its_own_step_and_one_it_waited_for(server: Server):
    """Another's compile (10-50) while it queues; its own (60-80) in its prefill; another's (110-130) after that."""
    r = server.requests.request("r")
    other = server.requests.request("other")
    with server.at(5).requests.step([(other, 12)]):
        server.stall(10, 50)
    with server.at(55).requests.step([(r, 7), (other, 1)]):
        server.stall(60, 80)
        r.token()
    with server.at(100).requests.step([other]):
        server.stall(110, 130)
    server.at(150)
    r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=20, queued_ns=40)
    assert server.finished[0].after == Exposure(in_batch_ns=0, queued_ns=20)
    other.finish()
    assert server.finished[1].before == Exposure(in_batch_ns=80, queued_ns=0)


def test_a_stall_that_began_before_the_request_counts_from_its_arrival(server: Server):
    first = server.requests.request()
    with server.cold_call(10, 100):
        late = server.at(70).requests.request()
    first.finish()
    late.finish()
    assert [cost.before.queued_ns for cost in server.finished] == [90, 30]


def test_a_cold_call_in_progress_counts_up_to_the_end(server: Server):
    """A client that gives up during a compile stood behind it, although nobody knows yet how long it will take."""
    r = server.requests.request()
    with server.cold_call(10, 100):
        server.at(40)
        r.finish(error="client_gone")
    assert server.finished[0].before == Exposure(queued_ns=30)


def test_a_request_that_ends_inside_its_step_keeps_that_step(server: Server):
    r = server.requests.request()
    with server.at(5).requests.step([r]):
        server.stall(10, 30)
        r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=20)


def test_once_steps_are_known_other_threads_cold_calls_do_not_count(server: Server):
    r = server.requests.request()
    server.stall(0, 10, ELSEWHERE)
    with server.requests.step([]):
        pass
    server.stall(20, 25)
    assert server.requests.is_serving(HERE)
    assert not server.requests.is_serving(ELSEWHERE)
    r.finish()
    assert server.finished[0].before == Exposure(queued_ns=5)


def test_a_second_serving_threads_stall_counts_in_the_first_ones_step(server: Server):
    """Two ranks as threads of one process: the one that compiles holds up the other."""
    r = server.requests.request()

    def rank() -> None:
        with server.requests.step([]):
            server.requests.stall(10, 40, this_thread())

    with server.requests.step([r]):
        thread = threading.Thread(target=rank)
        thread.start()
        thread.join()
        server.at(50)
    r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=30)


def test_stalls_are_kept_only_while_a_live_request_may_need_them(server: Server):
    server.stall(0, 10)
    assert server.requests._stalls.between(0, 99) == []
    r = server.requests.request()
    server.stall(20, 30)
    assert server.requests._stalls.between(0, 99) == [(20, 30)]
    r.finish()
    late = server.at(50).requests.request()
    server.stall(60, 70)
    assert server.requests._stalls.between(0, 99) == [(60, 70)]
    late.finish()


# Parts of a life


def test_a_life_in_parts(server: Server):
    """Queue 0-10, step 10-50 with a stall 20-30 and a fallback 35-45, idle 50-60, step 60-70, last words 70-100."""
    r = server.requests.request()
    with server.at(10).requests.step([r]):
        server.stall(20, 30)
        server.at(35)
        with server.requests.fallback("op", "all", "rare"):
            server.at(45)
        server.at(50)
    r.token()
    with server.at(60).requests.step([(r, 1)]):
        server.at(70)
    server.at(100)
    r.finish()
    assert server.finished[0].parts == Parts(
        queue_ns=10, execution_ns=30, exposure_ns=10, fallback_ns=10, remainder_ns=40
    )


def test_a_request_without_a_step_has_no_parts(server: Server):
    r = server.requests.request()
    server.at(10)
    r.finish()
    assert server.finished[0].parts is None


def test_a_stall_inside_a_fallback_is_a_stall_and_a_fallback_inside_a_fallback_is_its_part(server: Server):
    r = server.requests.request()
    with server.requests.step([r]):
        with server.requests.fallback("op", "all", "rare"):
            server.at(5)
            with server.requests.fallback("op", "all", "rare"):
                server.stall(10, 30)
                server.at(35)
            server.at(40)
        server.at(50)
    with server.requests.fallback("op", "all", "rare"):  # outside of any step: nobody's
        server.at(60)
    r.finish()
    assert server.finished[0].parts == Parts(0, 10, 20, 20, 10)


def test_parts_of_a_long_request_add_up(server: Server):
    r = server.requests.request()
    for i in range(3 * windows.MAX_WINDOWS):
        with server.at(10 * i + 5).requests.step([r]):
            server.stall(10 * i + 6, 10 * i + 8)
            server.at(10 * i + 9)
    r.finish()
    n = 3 * windows.MAX_WINDOWS
    assert server.finished[0].parts == Parts(5, 2 * n, 2 * n, 0, 6 * n - 6)


def test_overlapping_steps_are_told(server: Server):
    alone, one, other = (server.requests.request(name) for name in ("alone", "one", "other"))
    with server.requests.step([alone]):
        pass
    first, second = server.requests.step([one], id=1).begin(), server.requests.step([other], id=2).begin()
    first.end()
    second.end()
    for r in (alone, one, other):
        r.finish()
    assert {cost.id: cost.pipelined for cost in server.finished} == {"alone": False, "one": True, "other": True}


def test_what_overlapping_steps_share_is_executed_once(server: Server):
    r = server.requests.request()
    first = server.at(10).requests.step([r], id=1).begin()
    second = server.at(30).requests.step([r], id=2).begin()
    server.at(40)
    first.end()
    third = server.at(50).requests.step([r], id=3).begin()
    server.at(60)
    second.end()
    server.stall(65, 70)  # in the third
    server.at(80)
    third.end()
    server.at(100)
    r.finish()
    assert server.finished[0].parts == Parts(10, 65, 5, 0, 20)
    assert server.finished[0].pipelined


def test_ranks_of_one_step_do_not_overlap_it(server: Server):
    r = server.requests.request()
    with server.requests.step([r], id=1), server.requests.step([r], id=1):
        pass
    r.finish()
    assert not server.finished[0].pipelined


def test_phases_of_the_calls_that_it_stood_behind(server: Server):
    server.requests.request("old")
    server.at(0).requests.stall(0, 10, HERE, (("llir", 10),))
    r = server.at(20).requests.request()
    server.requests.stall(15, 25, HERE, (("ptx", 8), ("other", 2)))
    server.requests.stall(30, 40, HERE, (("ptx", 10),))
    server.at(50)
    r.finish()
    assert server.finished[0].before == Exposure(queued_ns=15, phases=(("ptx", 14), ("other", 1)))


# Bounds


def test_a_long_request_keeps_its_exposure_through_thousands_of_steps(server: Server):
    """A stall in one of its own steps, then one in another's, every 100 steps: few enough to be remembered exactly."""
    r, other = server.requests.request(), server.requests.request()
    now = 0
    for i in range(10 * windows.MAX_WINDOWS):
        for batch in ([r], [other]):
            with server.at(now).requests.step(batch):
                if i % 100 == 0:
                    server.stall(now + 1, now + 4)
                server.at(now + 8)
            now += 10
    r.finish()
    stalls = -(-10 * windows.MAX_WINDOWS // 100)
    assert server.finished[0].before == Exposure(in_batch_ns=3 * stalls, queued_ns=3 * stalls)
    assert len(r._windows) <= windows.MAX_WINDOWS
    assert len(r._stalled) <= windows.MAX_WINDOWS // 2


def test_beyond_its_bound_in_batch_takes_from_queued_and_the_whole_stays(server: Server):
    r, other = server.requests.request(), server.requests.request()
    rounds = 2 * windows.MAX_WINDOWS
    for i in range(rounds):
        with server.at(20 * i).requests.step([r]):
            server.stall(20 * i, 20 * i + 4)
        with server.at(20 * i + 10).requests.step([other]):
            server.stall(20 * i + 10, 20 * i + 14)
    r.finish()
    before = server.finished[0].before
    assert before.total_ns == 8 * rounds
    assert 4 * rounds < before.in_batch_ns <= 8 * rounds
    assert len(r._stalled) <= windows.MAX_WINDOWS // 2


# (what happens, to which of three requests, after how long, for how long)
actions = st.lists(
    st.tuples(
        st.sampled_from(["step", "stall", "token", "finish"]), st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)
    ),
    max_size=60,
)


@given(actions, st.sampled_from([2, 3, 512]))
def test_figures_match_the_definition_for_any_order_of_events(actions, max_windows):
    """The same as `exposure` says of everything that happened; with few windows the sum still holds."""
    server = Server()
    old, windows.MAX_WINDOWS = windows.MAX_WINDOWS, max_windows
    try:
        requests = [server.requests.request(str(i)) for i in range(3)]
        ran_in: dict[str, list[tuple[int, int]]] = {r.id: [] for r in requests}
        stalls: list[tuple[int, int]] = []
        first: dict[str, int] = {}
        ended: set[str] = set()
        with server.requests.step([]):
            pass
        for action, who, gap, length in actions:
            r = requests[who]
            start, end = server.now + gap, server.now + gap + length
            if r.id in ended:
                continue
            if action == "step":
                with server.at(start).requests.step([r]):
                    server.stall(start, end)
                    server.at(end + 1)
                ran_in[r.id].append((start, end + 1))
                stalls.append((start, end))
            elif action == "stall":
                server.stall(start, end)
                stalls.append((start, end))
            elif action == "token":
                r.token()
                first.setdefault(r.id, server.now)
            else:
                r.finish()
                ended.add(r.id)
        for r in requests:
            if r.id not in ended:
                r.finish()
        for cost in server.finished:
            life = (cost.start_ns, cost.end_ns)
            before, after = exposure(life, first.get(cost.id), ran_in[cost.id], stalls)
            assert (cost.before.total_ns, cost.after.total_ns) == (before.total_ns, after.total_ns)
            if ran_in[cost.id]:
                ran = difference(union(ran_in[cost.id]), union(stalls))
                began = min(start for start, _ in ran_in[cost.id])
                executed = sum(end - start for start, end in ran)
                assert cost.parts == parts(life, began, executed, 0, union(stalls))
            else:
                assert cost.parts is None
            if max_windows == 512:
                assert (cost.before, cost.after) == (before, after)
            else:
                assert cost.before.in_batch_ns + cost.after.in_batch_ns >= before.in_batch_ns + after.in_batch_ns
        assert server.errors == []
    finally:
        windows.MAX_WINDOWS = old


# Misuse is counted, said once, and harmless


def test_a_step_that_was_given_up_counts_no_more_whoever_ends_it(server: Server):
    r = server.requests.request("r")
    server.now += 1000  # so that a step counted twice would have its place
    step = server.requests.step([r])
    thread = threading.Thread(target=step.begin)
    thread.start()
    thread.join()
    with server.requests.step([r]):
        server.now += 10
    step.end()
    server.now += 1000
    del step
    r.finish()
    (cost,) = server.finished
    assert cost.parts is not None
    assert cost.parts.execution_ns == 10
    server.requests.request("next")
    assert server.errors == ["requests"]
    assert (server.requests._running, server.requests._steps) == ({}, {})


def test_a_step_begins_once(server: Server, caplog: pytest.LogCaptureFixture):
    r = server.requests.request("r")
    for _ in range(3):
        with server.requests.step([r]).begin() as step:  # `begin`, and the block's beginning
            server.now += 10
    assert server.errors == []
    for _ in range(2):
        with step:
            server.now += 10
    r.finish()
    (cost,) = server.finished
    assert cost.parts is not None
    assert cost.parts.execution_ns == 30
    assert (server.requests._running, server.requests._steps) == ({}, {})
    assert server.errors == ["requests", "requests"]
    (said,) = caplog.messages
    assert said.startswith("tritonprobe: a step that was over was begun again, which counts for nothing (said once")


def test_finishing_twice(server: Server, caplog: pytest.LogCaptureFixture):
    r = server.requests.request("r")
    server.at(10)
    r.finish()
    server.at(99)
    r.finish(error="late")
    r.finish()
    assert [(cost.end_ns, cost.error) for cost in server.finished] == [(10, None)]
    assert server.errors == ["requests", "requests"]
    assert [record.getMessage() for record in caplog.records] == [
        "tritonprobe: request 'r' was finished twice; the first time counts (said once, counted in errors_total)"
    ]


def test_a_token_after_the_end(server: Server, caplog: pytest.LogCaptureFixture):
    r = server.requests.request("r")
    r.finish()
    r.token()
    assert server.finished[0].tokens == 0
    assert server.errors == ["requests"]
    assert "request 'r' got a token after it had finished" in caplog.text


@pytest.mark.parametrize("n", [-1, 1.0, "2", None])
def test_a_token_count_that_is_none(server: Server, n):
    r = server.requests.request()
    r.token(n)
    r.finish()
    assert server.finished[0].first_token_ns is None
    assert server.errors == ["requests"]


def test_no_tokens_this_step_is_no_first_token(server: Server):
    r = server.requests.request()
    r.token(0)
    r.finish()
    assert server.finished[0].first_token_ns is None
    assert server.errors == []


@pytest.mark.parametrize("batch", [None, 7, [None], ["r1"], [("r1", 3)], [()]])
def test_a_batch_that_holds_no_requests(server: Server, batch):
    with server.requests.step(batch):
        pass
    assert server.errors == ["requests"]


def test_the_good_part_of_a_batch_is_used(server: Server):
    r = server.requests.request()
    with server.requests.step([7, r]):  # type: ignore[list-item]  # the point
        server.stall(0, 10)
    r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=10)


def test_a_request_that_is_dropped_without_finish(server: Server, caplog: pytest.LogCaptureFixture):
    server.requests.request("lost")
    gc.collect()
    keeps = server.requests.request("next")
    assert server.errors == ["requests"]
    assert server.finished == []
    assert len(server.requests._live) == 1
    assert "dropped without finish()" in caplog.text
    keeps.finish()


def test_too_many_live_requests(server: Server, monkeypatch: pytest.MonkeyPatch):
    """The oldest is given up: its figures would no longer be an upper bound, so there are none."""
    monkeypatch.setattr(live, "MAX_LIVE", 2)
    requests = [server.requests.request(str(i)) for i in range(3)]
    for r in requests:
        r.finish()
    assert [cost.id for cost in server.finished] == ["1", "2"]
    assert server.errors == ["requests"]


def test_a_faulty_provider_of_open_calls_harms_nobody(caplog: pytest.LogCaptureFixture):
    def faulty() -> list[tuple[int, int]]:
        raise RuntimeError("ours")

    errors: list[str] = []
    requests = Requests(Bus(), on_error=errors.append, open_stalls=faulty)
    r = requests.request("r")
    for _ in range(windows.MAX_WINDOWS + 1):
        with requests.step([r]):
            pass
    r.finish()
    assert errors == ["requests", "requests"]
    assert "RuntimeError: ours" in caplog.text


def test_nothing_is_said_when_all_is_well(server: Server, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG), server.requests.request() as r, server.requests.step([r]):
        r.token()
    assert caplog.records == []


def test_an_engine_thread_that_dies_in_a_step_holds_nobody_up(server: Server):
    """It began a step by hand and never came to its end; the server finishes its requests."""
    r = server.requests.request()

    def engine() -> None:
        step = server.requests.step([r], id=1).begin()
        server.requests.stall(10, 30, this_thread())
        del step  # as when an exception unwinds the thread's stack

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    gc.collect()
    server.at(50)
    r.finish(error="engine_died")
    assert server.finished[0].before.total_ns == 20
    assert server.requests._steps == {}
    server.requests.request().finish()
    assert server.errors == ["requests"]


def test_a_step_that_outlives_its_dead_thread_is_no_company_for_later_ones(
    server: Server, caplog: pytest.LogCaptureFixture
):
    """Its owner keeps it, as an engine does that has its step as an attribute."""
    kept: list[Step] = []
    live = [server.requests.request() for _ in range(5)]

    def engine() -> None:
        kept.append(server.requests.step([live[len(kept)]], id=len(kept)).begin())

    for _ in range(5):
        thread = threading.Thread(target=engine)
        thread.start()
        thread.join()
    with server.requests.request() as r, server.requests.step([r], id="healthy"):
        server.at(10)
    assert len(server.requests._steps) == 0
    assert [cost.pipelined for cost in server.finished] == [False]
    kept[-1].end()
    server.requests.request().finish()
    assert server.errors == ["requests"] * 5
    assert caplog.text.count("was begun and not ended") == 1


@pytest.mark.parametrize("step_id", [None, 7, "", "x" * 100_000, object(), ["no", "id"]])
def test_whatever_a_steps_id_is_nothing_breaks(server: Server, step_id):
    r = server.requests.request()
    with server.requests.step([r], id=step_id):
        server.stall(10, 30)
    r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=20)
    assert server.errors == []


# Threads


def test_many_threads_share_requests_steps_and_stalls():
    """Real clock: eight server threads hold requests that two engine threads step; no token or request is lost."""
    finished: list[RequestCost] = []
    errors: list[str] = []
    bus = Bus()
    bus.subscribe(lambda event: finished.append(event) if isinstance(event, RequestCost) else None)
    requests = Requests(bus, on_error=errors.append)
    running: list[LiveRequest] = []
    stop = threading.Event()

    def engine() -> None:
        while not stop.is_set():
            batch = running[:]
            with requests.step([(r, 1) for r in batch]):
                start = requests._clock()
                requests.stall(start, requests._clock(), this_thread())

    def serve() -> None:
        for _ in range(100):
            with requests.request(model="tiny") as r:
                running.append(r)
                for _ in range(5):
                    r.token()
                running.remove(r)

    engines = [threading.Thread(target=engine) for _ in range(2)]
    servers = [threading.Thread(target=serve) for _ in range(8)]
    for thread in engines + servers:
        thread.start()
    for thread in servers:
        thread.join()
    stop.set()
    for thread in engines:
        thread.join()

    assert len(finished) == 800
    assert all(cost.tokens == 5 for cost in finished)
    assert all(0 <= cost.before.total_ns + cost.after.total_ns <= cost.end_ns - cost.start_ns for cost in finished)
    assert errors == []
    assert requests._live == {}
    assert requests._steps == {}


# Whose trace it is

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def span() -> Iterator[tuple[str, str]]:
    with TracerProvider(sampler=ALWAYS_ON).get_tracer("tests").start_as_current_span("serve") as started:
        context = started.get_span_context()
        yield trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def test_a_request_belongs_to_the_span_in_which_it_was_made(server: Server):
    with span() as current:
        traced = server.requests.request("traced")
    server.requests.request("untraced").finish()
    traced.finish()
    assert [(cost.id, cost.trace) for cost in server.finished] == [("untraced", None), ("traced", current)]


def test_a_traceparent_says_more_than_the_current_span(server: Server):
    with span():
        server.requests.request(traceparent=f"00-{TRACE}-{SPAN}-01").finish()
        server.requests.request(traceparent=f"00-{TRACE}-{SPAN}-00").finish()  # whoever sent it does not sample it
    assert [cost.trace for cost in server.finished] == [(TRACE, SPAN), None]
    assert server.errors == []


def test_a_malformed_traceparent_is_counted_each_time_and_logged_once(server: Server, caplog):
    with caplog.at_level(logging.WARNING), span() as current:
        for header in ("00-xyz", "", "x" * 10_000):
            server.requests.request(traceparent=header).finish()
    assert [cost.trace for cost in server.finished] == [current] * 3
    assert server.client_errors == ["traceparent"] * 3
    assert server.errors == []  # a client's fault is not the program's
    (told,) = caplog.messages
    assert told == (
        "tritonprobe: a request's trace is not a W3C traceparent: '00-xyz'; the request has the current span's, if any "
        "(said once, counted in client_errors_total)"
    )


def test_a_traceparent_that_is_no_text_is_the_programs_misuse(server: Server):
    server.requests.request(traceparent=b"00-xyz").finish()  # type: ignore[arg-type]
    assert (server.errors, server.client_errors) == (["requests"], [])


# Signals, interrupts and forks


class Interrupt(BaseException):
    """What a server's handler of SIGINT or of a time limit raises."""


def interrupted(code: Callable[[], object]) -> Iterator[bool]:
    """Runs `code` again and again, interrupted at each line of ours in turn. Tells whether it was."""
    for at in itertools.count():
        left = at

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if "/tritonprobe/requests/" not in frame.f_code.co_filename or frame.f_code.co_name == "__del__":
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    raise Interrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            code()
        except Interrupt:
            pass
        finally:
            sys.settrace(before)
        yield left < 0
        if left >= 0:
            return


def test_whatever_is_interrupted_nothing_is_left_behind(server: Server, monkeypatch: pytest.MonkeyPatch):
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def serve() -> None:
        with server.requests.request() as r:
            with server.requests.step([r]):
                r.token()
            r.token()

    times = 0
    for was in interrupted(serve):
        times += was
        gc.collect()
        assert server.requests._steps == {}
        server.requests.request().finish()  # the next one: whoever is left is given up now
        assert server.requests._live == {}
    assert times > 50
    assert unraisable == []


def test_a_request_that_is_half_made_goes_silently(monkeypatch: pytest.MonkeyPatch):
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    LiveRequest.__new__(LiveRequest)
    Step.__new__(Step)
    gc.collect()
    assert unraisable == []


def test_a_signals_handler_may_have_a_request_of_its_own(server: Server):
    """Inside whatever the interrupted thread was doing: in `request`, in a step, in `finish`."""

    def handler() -> None:
        with server.requests.request("handler") as r, server.requests.step([r]):
            server.requests.stall(server.now, server.now, HERE)
            r.token()

    def clock() -> int:
        if not inside:
            inside.append(None)
            handler()
            inside.pop()
        server.now += 1
        return server.now

    inside: list[None] = []
    server.requests._clock = clock
    with server.requests.request("main") as main:
        with server.requests.step([main]):
            main.token()
        assert next(iter(server.requests._live.values())) == main.start_ns  # the oldest is first
    assert [cost.id for cost in server.finished].count("main") == 1
    assert server.requests._live == {}
    assert server.errors == []


def test_a_forked_child_has_no_requests_steps_or_stalls_of_its_parent(server: Server):
    r = server.requests.request()
    step = server.requests.step([r])
    step.__enter__()
    server.stall(0, 10)

    child = os.fork()
    if child == 0:
        own = server.at(20).requests
        good = own._live == {} and own._steps == {} and own.is_serving(ELSEWHERE)
        own.request("child").finish()
        r.finish()  # the parent's to count
        step.__exit__(None, None, None)
        good = good and [(cost.id, cost.before.total_ns) for cost in server.finished] == [("child", 0)]
        os._exit(0 if good and server.errors == [] else 1)
    assert os.waitpid(child, 0)[1] == 0

    step.__exit__(None, None, None)
    r.finish()
    assert server.finished[0].before == Exposure(in_batch_ns=10)


# Which thread


def test_a_thread_with_the_ident_of_one_that_ended_does_not_serve_for_it(server: Server):
    """The system gives idents out again: a precompile thread may get that of a thread which once ran a step."""
    numbers: list[int] = []

    def step() -> None:
        numbers.append(this_thread())
        with server.requests.step([]):
            pass

    first = threading.Thread(target=step)
    first.start()
    first.join()
    ident = first.ident
    for _ in range(100):
        later = threading.Thread(target=lambda: numbers.append(this_thread()))
        later.start()
        later.join()
        if later.ident == ident:
            break
    else:
        pytest.skip("no ident was given out again")
    assert server.requests.is_serving(numbers[0])
    assert not server.requests.is_serving(numbers[-1])
