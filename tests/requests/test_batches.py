"""Batches that stay the same are read once, and a meter counts for all of their requests: held against plain sums.

All of it in C, and without.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requests.test_live import HERE, Server
from tritonprobe import native
from tritonprobe.requests import batches
from tritonprobe.requests.batches import batches as make

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")


@pytest.fixture(autouse=True, scope="module", params=[pytest.param("in C", marks=needs_compiler), "in Python"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "in Python":
            patched.setattr(batches, "compiled", lambda: None)
        else:
            assert batches.compiled() is not None
        yield


@pytest.fixture
def server() -> Server:
    return Server()


def ran(server: Server, batch: Iterable[Any], ns: int) -> None:
    with server.requests.step(batch):
        server.now += ns


def executed(server: Server) -> dict[str, int | None]:
    return {cost.id: None if cost.parts is None else cost.parts.execution_ns for cost in server.finished}


STEPS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 5)),  # who is in it
        st.integers(0, 50),  # how long it takes
        st.sampled_from(["calm", "calm", "calm", "stalled", "beside"]),
        st.sets(st.integers(0, 5), max_size=1),  # who ends after it
        st.sampled_from([list, tuple, lambda batch: [(r, 1) for r in batch], iter]),
    ),
    max_size=25,
)


@given(STEPS)
def test_a_requests_execution_is_the_sum_of_its_steps_whatever_the_batches(steps: list[Any]):
    server = Server()
    live = {i: server.requests.request(str(i)) for i in range(6)}
    lives = dict.fromkeys(map(str, range(6)), 0)
    took = dict.fromkeys(map(str, range(6)), 0)
    was_in: set[str] = set()
    for who, ns, how, ends, shape in steps:
        batch = [live[i] for i in sorted(who) if i in live]
        start = server.now
        stalled = ns // 2 if how == "stalled" else 0
        with server.requests.step(shape(batch)):
            if how == "stalled":
                server.stall(start, start + stalled, HERE)
            if how == "beside":  # another step over the same requests, as a second rank runs it
                ran(server, batch, ns)
            server.now = start + ns
        for request in batch:
            took[request.id] += ns - stalled
            was_in.add(request.id)
        for i in ends & live.keys():
            lives[str(i)] = server.now
            live.pop(i).finish()
        server.now += 3
    for request in live.values():
        lives[request.id] = server.now
        request.finish()
    assert executed(server) == {name: took[name] if name in was_in else None for name in took}
    for cost in server.finished:
        if cost.parts is not None:
            assert sum(getattr(cost.parts, part) for part in cost.parts.__slots__) == lives[cost.id]
    assert server.errors == []


def test_a_list_that_the_engine_changes_in_place_is_another_batch(server: Server):
    early, late = server.requests.request("early"), server.requests.request("late")
    batch = [early]
    ran(server, batch, 10)
    step = server.requests.step(batch)
    batch.append(late)  # while the step is made, too
    with step:
        server.now += 10
    ran(server, batch, 10)
    batch.remove(early)
    ran(server, batch, 10)
    for request in (early, late):
        request.finish()
    assert executed(server) == {"early": 30, "late": 20}


def test_another_number_of_tokens_is_the_same_batch_for_its_requests(server: Server):
    r = server.requests.request("r")
    for tokens in (512, 512, 100, 1, 1):
        ran(server, [(r, tokens)], 10)
    r.finish()
    assert executed(server) == {"r": 50}


def test_a_request_that_is_in_a_batch_twice_is_in_it_once(server: Server):
    r = server.requests.request("r")
    ran(server, [r, (r, 1)], 10)
    ran(server, [r, r], 10)
    r.finish()
    assert executed(server) == {"r": 20}


def test_a_fallback_in_a_step_is_charged_once_to_a_request_that_is_in_it_twice(server: Server):
    r = server.requests.request("r")
    batches: list[list[Any]] = [[r, r], [(r, 1), (r, 2)], [r, "elsewhere", r]]
    for batch in batches:
        with server.requests.step(batch), server.requests.fallback("op", "all", "unsupported_shape"):
            server.now += 5
        ran(server, batch, 15)
    r.finish()
    (cost,) = server.finished
    assert cost.parts is not None
    assert (cost.parts.execution_ns, cost.parts.fallback_ns) == (45, 15)


@pytest.mark.parametrize("how", ["calm", "beside", "stalled", "calm for one of them"])
def test_a_step_that_two_threads_end_at_the_same_time_counts_once(
    server: Server, how: str, monkeypatch: pytest.MonkeyPatch
):
    traced = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    r = server.requests.request("r", traceparent=traced)
    server.now += 1000  # so that a step counted twice would have its place
    other = server.requests.step([r]).begin() if how == "beside" else None
    step = server.requests.step([r]).begin()
    with server.requests.fallback("op", "all", "unsupported_shape"):
        server.now += 5
    server.now += 15
    if how == "stalled":
        server.stall(server.now - 8, server.now, HERE)
    both, is_calm = threading.Barrier(2, timeout=60), server.requests._is_calm
    answers = iter([True, False])

    def together(start: int, end: int) -> bool:
        both.wait()
        return next(answers) if how == "calm for one of them" else is_calm(start, end)

    monkeypatch.setattr(server.requests, "_is_calm", together)
    with ThreadPoolExecutor(2) as threads:
        for ending in [threads.submit(step.end) for _ in range(2)]:
            ending.result()  # and raises nothing
    monkeypatch.undo()
    if other is not None:
        other.end()
    server.now += 1000
    assert len(server.requests.traced_steps(0, server.now)) == (1 if other is None else 2)
    r.finish()
    (cost,) = server.finished
    assert cost.parts is not None
    # Of the 20 in the step, the fallback took 5, and what stalled is no execution.
    assert (cost.parts.execution_ns, cost.parts.fallback_ns) == (7 if how == "stalled" else 15, 5)
    assert not server.requests._steps
    assert not server.requests._running


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_that_ends_on_its_thread_while_a_request_finishes_on_another_counts_once(
    server: Server, beside: bool, monkeypatch: pytest.MonkeyPatch
):
    r = server.requests.request("r")
    server.now += 1000  # so that a step counted twice would have its place
    ran(server, [r], 1)
    server.now += 1000
    other = server.requests.step([r]).begin() if beside else None
    step = server.requests.step([r]).begin()
    server.now += 20

    def ending() -> list[tuple[int, int]]:
        """Asked for after the finish has seen the step in progress: then that ends."""
        monkeypatch.undo()
        for each in (step, other):
            if each is not None:
                engine = threading.Thread(target=each.end)
                engine.start()
                engine.join()
        return []

    monkeypatch.setattr(server.requests._stalls, "_open", ending)
    r.finish()
    assert executed(server) == {"r": 21}


@pytest.mark.parametrize("ends", ["before it is seen", "after that"])
def test_a_step_that_begins_while_another_ones_clock_is_read_runs_beside_it(
    server: Server, ends: str, monkeypatch: pytest.MonkeyPatch
):
    r = server.requests.request("r")
    server.now += 1000  # so that a step counted twice would have its place
    other = server.requests.step([r])

    def clock() -> int:
        """Another thread has its turn between the reading and what is done with it."""
        monkeypatch.undo()
        read = server.now
        other.begin()
        if ends == "before it is seen":
            server.now += 10
            other.end()
        return read

    monkeypatch.setattr(server.requests, "_clock", clock)
    with server.requests.step([r]):
        server.now += 10
        other.end()
        server.now += 10
    server.now += 1000
    r.finish()
    assert executed(server) == {"r": server.now - 2000}
    (cost,) = server.finished
    assert cost.pipelined


def test_a_request_that_ends_while_a_steps_clock_is_read_was_not_in_it_yet(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    r = server.requests.request("r")
    server.now += 10

    def clock() -> int:
        monkeypatch.undo()
        r.finish()
        return server.now

    monkeypatch.setattr(server.requests, "_clock", clock)
    ran(server, [r], 10)
    assert executed(server) == {"r": None}


def test_a_step_that_ends_as_the_last_thing_that_its_thread_does_was_ended(server: Server):
    r = server.requests.request("r")
    last = server.requests.step([r]).begin()
    last._running.life = last.end  # type: ignore[assignment]  # gives None: its thread ends just before it is asked for
    ran(server, [r], 10)
    server.requests.request("next")
    assert server.errors == []


def test_a_request_that_left_before_its_end_counts_until_then(server: Server):
    preempted, other = server.requests.request("preempted"), server.requests.request("other")
    ran(server, [preempted, other], 10)
    ran(server, [other], 10)
    ran(server, [other, preempted], 10)
    preempted.finish()
    ran(server, [other, preempted], 10)  # the engine notices late
    other.finish()
    assert executed(server) == {"preempted": 20, "other": 40}


def test_the_first_step_is_the_end_of_the_queue(server: Server):
    r = server.requests.request("r")
    server.now += 7
    ran(server, [r], 10)
    ran(server, [r], 10)
    r.finish()
    (cost,) = server.finished
    assert cost.parts is not None
    assert (cost.parts.queue_ns, cost.parts.execution_ns) == (7, 20)


class Odd:
    """Refuses to be compared, as an array does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("beside", [Odd(), {}, None])
def test_what_stands_beside_a_request_is_the_engines_business(server: Server, beside: object):
    r = server.requests.request("r")
    for _ in range(3):
        ran(server, [(r, beside)], 10)
    ran(server, [(r, Odd())], 10)
    r.finish()
    assert executed(server) == {"r": 40}
    assert server.errors == []


class Compared:
    """Counts, as a tensor launches a kernel."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return True

    __hash__ = None  # type: ignore[assignment]


def test_what_stands_beside_a_request_is_not_compared(server: Server):
    r = server.requests.request("r")
    for _ in range(3):
        ran(server, [(r, Compared())], 10)
    r.finish()
    assert executed(server) == {"r": 30}
    assert Compared.times == 0


class NoHash:
    def __hash__(self) -> int:
        raise ValueError("no hash")


@pytest.mark.parametrize("stranger", [(), NoHash(), ((),)])
@pytest.mark.parametrize("first", [True, False])
def test_nothing_that_an_engine_gives_raises_into_it(server: Server, stranger: Any, first: bool):
    r = server.requests.request("r")
    ran(server, [stranger, r] if first else [r, stranger], 10)
    assert server.errors == ["requests"]


@pytest.mark.parametrize("stranger", [Odd(), 5, None, {}])
def test_a_stranger_is_counted_in_each_step(server: Server, stranger: object):
    r = server.requests.request("r")
    for _ in range(3):
        ran(server, [r, stranger], 10)
    r.finish()
    assert executed(server) == {"r": 30}
    assert server.errors == ["requests"] * 3


def test_the_last_batch_holds_its_requests_until_the_next_one_comes(server: Server):
    """A request that nobody finishes is given up then: not later, and not while a step is in progress."""
    r = server.requests.request("dropped")
    ran(server, [r], 10)
    del r
    gc.collect()
    server.requests.request("next").finish()
    assert [cost.id for cost in server.finished] == ["next"]
    assert server.errors == ["requests"]
    assert server.requests._live == {}


def test_the_same_batch_is_read_once(server: Server):
    said = list[tuple[str, str]]()
    engine = make(lambda *what: said.append(what))
    live = [server.requests.request() for _ in range(3)]
    first = engine.read(live, False)
    assert first.requests == live
    assert engine.read([*live], False) is first
    assert engine.read([(r, 1) for r in live], False) is first
    assert engine.read(live[1:], False).requests == live[1:]
    name = "else"
    with_ids = engine.read([*live, f"{name}where"], True)
    assert (with_ids.requests, with_ids.others) == (live, ["elsewhere"])
    assert engine.read([*live, f"{name}where"], True) is with_ids
    assert said == []
    assert engine.read([*live, "elsewhere"], False).others == ["elsewhere"]
    assert [kind for kind, _ in said] == ["ids"]
