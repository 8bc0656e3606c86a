"""Batches in C: as in Python, for whatever an engine gives, and with nothing left behind."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests.test_live import Server
from tritonprobe import native
from tritonprobe.bus import Bus
from tritonprobe.requests import LiveRequest, Requests, batches
from tritonprobe.requests.batches import Batch, Batches, InPython

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")


class Way:
    """An engine's batches in one of the two ways, and requests of its own."""

    def __init__(self, make: Callable[[Callable[[str, str], None]], Batches]) -> None:
        self.said: list[tuple[str, str]] = []
        self.batches = make(lambda *what: self.said.append(what))
        server = Server()
        self.live: list[Any] = [server.requests.request(str(i)) for i in range(90)]
        for request in self.live[7:9]:
            request._windows.append((0, 1))
        self.kept: list[tuple[Batch, list[str]]] = []
        self.last: Batch | None = None

    def read(self, entries: list[Any], shape: Callable[[list[Any]], Any], ids: bool) -> tuple[list[str], list[str]]:
        given = [entry if not isinstance(entry, int) else self.live[entry] for entry in entries]
        self.last = None
        self.last = batch = self.batches.read(shape(given), ids)
        return names(batch), batch.others

    def numbers(self) -> list[tuple[object, ...]]:
        metered = self.batches.metered
        return [(r._executed + metered(r), r._executed_to, r._first_step_ns, r._pipelined) for r in self.live]


def names(batch: Batch) -> list[str]:
    return [request.id for request in batch.requests]


class Stranger:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(self) -> int:
        raise ValueError("no hash")


SHAPES: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    lambda batch: [(entry, 1) for entry in batch],
    lambda batch: [(entry, Stranger()) if i % 2 else entry for i, entry in enumerate(batch)],
    iter,
]
CHANGES = ["nothing", "replace", "condense", "move", "shift", "swap", "shuffle", "halve", "refill", "twice", "others"]


def changed(batch: list[Any], how: str, chance: random.Random) -> list[Any]:
    new = chance.randrange(90)
    at = chance.randrange(len(batch)) if batch else 0
    if how == "replace" and batch:
        return [*batch[:at], new, *batch[at + 1 :]]
    if how == "condense":
        return [*batch[:at], *batch[at + chance.randrange(1, 8) :], new]
    if how == "move" and batch:  # the last one fills the gap
        return [*batch[:at], batch[-1], *batch[at + 1 : -1]]
    if how == "shift":
        return [*batch[1:], *([new] * (new not in batch))]
    if how == "swap" and batch:
        other = chance.randrange(len(batch))
        batch = batch[:]
        batch[at], batch[other] = batch[other], batch[at]
    if how == "shuffle":
        return chance.sample(batch, len(batch))
    if how == "halve":
        return batch[: len(batch) // 2]
    if how == "refill":
        return chance.sample(range(90), chance.randrange(80))
    if how == "twice":
        return [*batch, *batch[at : at + 2]]
    if how == "others":
        return [*batch[:at], chance.choice(["elsewhere", "there", None, 5]), *batch[at:]]
    return batch


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.tuples(
            st.sampled_from(CHANGES),
            st.sampled_from(SHAPES),
            st.sampled_from([*["turn"] * 4, "pass", "keep", "forget", "late", "no ids", "beside", "overlapping"]),
        ),
        max_size=30,
    ),
)
def test_whatever_an_engine_gives_both_ways_find_the_same(seed: int, steps: list[Any]) -> None:
    chance = random.Random(seed)
    both = [Way(batches.batches), Way(InPython)]
    assert not isinstance(both[0].batches, InPython)
    batch: list[Any] = []
    now = 0
    for how, shape, then in steps:
        batch = changed(batch, how, chance)
        found = [way.read(batch, shape, then != "no ids") for way in both]
        assert found[0] == found[1]
        now += 10
        for way in both:
            assert way.last is not None
            if then in ("turn", "no ids"):
                way.batches.turn(way.last, now, now + 3)
            elif then == "keep":  # as a step in progress does
                way.kept.append((way.last, names(way.last)))
            elif then == "forget":
                way.batches.forget()
            elif then in ("beside", "overlapping"):
                told = way.batches.beside(way.last, now - 5, now + 3, then == "overlapping")
                assert {request.id for request in told} == {"7", "8"} & set(names(way.last))
            elif then == "late" and way.kept:
                way.batches.turn(way.kept.pop(0)[0], now - 5, now)
            assert all(names(kept) == was for kept, was in way.kept)
        assert both[0].numbers() == both[1].numbers()
        assert both[0].said == both[1].said


class Busy:
    """An engine's loop over a busy batch: somebody leaves and somebody comes in each step."""

    def __init__(self, size: int) -> None:
        self.requests = Requests(Bus())
        self.running = [self.requests.request() for _ in range(size)]
        self._steps = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._steps += 1
            at = self._steps * 7919 % len(self.running)
            if self._steps % 2:
                self.running.pop(at).finish()
                self.running.append(self.requests.request())
            else:
                self.running[at].finish()
                self.running[at] = self.requests.request()
            if self._steps % 50 == 0:  # so many that they are not handled one by one
                random.Random(self._steps).shuffle(self.running)
            with self.requests.step([(request, 1) for request in self.running]):
                pass
            if self._steps % 20 == 0:  # and one that nobody can read
                odd: list[Any] = [self.running[0], object(), "elsewhere"]
                with self.requests.step(odd):
                    pass


def test_nothing_is_left_behind() -> None:
    engine = Busy(64)
    engine.run(400)  # until all that is kept is there
    one = engine.running[3]
    tracemalloc.start()
    try:
        for _ in range(2):
            engine.run(200)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
        engine.run(2000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 4096
    finally:
        tracemalloc.stop()
    engine.running.clear()
    with engine.requests.step([]):
        pass
    engine.requests._batches.forget()
    assert sys.getrefcount(one) == 2  # `one`, and the argument


def test_a_request_is_held_as_often_as_it_is_in_batches() -> None:
    server = Server()
    engine = batches.batches(lambda *what: None)
    live = [server.requests.request() for _ in range(8)]

    def held() -> list[int]:
        return [sys.getrefcount(request) for request in live]

    plain = held()
    for number in range(100):
        given = live[number % 3 :] + live[: number % 5]
        engine.turn(engine.read(given, False), number, number + 1)
    del given
    engine.turn(engine.read(live[:1], False), 0, 1)
    assert held() == [plain[0] + 1, *plain[1:]]
    engine.forget()  # but the first one is held by its list here, and there is nothing to forget
    assert held() == [plain[0] + 1, *plain[1:]]
    kept = engine.read(live, False)
    engine.forget()
    del kept
    assert held() == plain


def test_a_batch_that_somebody_holds_stays_what_it_is() -> None:
    server = Server()
    live = [server.requests.request(str(i)) for i in range(6)]
    kept = []
    for first in range(3):
        with server.requests.step(live[first : first + 3], id=first) as step:
            kept.append((step._batch, [request.id for request in live[first : first + 3]]))
    assert [names(batch) for batch, _ in kept] == [was for _, was in kept]


def test_an_engine_that_is_gone_is_collected() -> None:
    engine = Busy(8)
    engine.run(3)
    gone = weakref.ref(engine.requests)
    del engine
    gc.collect()
    assert gone() is None


def test_a_request_whose_end_runs_a_step_may_be_the_last_one_held() -> None:
    server = Server()
    ended: list[str] = []

    class Last(LiveRequest):
        __slots__ = ()

        def __del__(self) -> None:
            with server.requests.step([other]):
                ended.append(self.id)

    other = server.requests.request("other")
    for i in range(20):
        last = Last(server.requests, key=-i, name=str(i), model="", start_ns=0, unix_ns=0, trace=None, record=True)
        with server.requests.step([other, last]):
            server.now += 1
        del last
        with server.requests.step([other]):
            server.now += 1
    other.finish()
    gc.collect()
    assert ended == [str(i) for i in range(20)]
    (cost,) = server.finished
    assert cost.parts is not None
    assert cost.parts.execution_ns == 40


def test_a_list_that_a_finalizer_changes_while_it_is_read_is_read_safely() -> None:
    """On Python up to 3.11 the collector runs inside of what makes a list."""
    server = Server()
    live = [server.requests.request() for _ in range(300)]
    batch: list[LiveRequest] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        batch.clear()

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        for number in range(100):
            batch[:] = live[number : number + 200]
            gc.set_threshold(1)
            with server.requests.step(batch):
                gc.set_threshold(*threshold)
                server.now += 1
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert server.errors == []


def test_a_request_of_a_class_of_the_engines_is_one() -> None:
    class Theirs(LiveRequest):
        pass

    class Odd(LiveRequest):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        def __hash__(self) -> int:
            raise ValueError("no hash")

    server = Server()

    def made(kind: type[LiveRequest], key: int) -> LiveRequest:
        return kind(server.requests, key=key, name="n", model="", start_ns=0, unix_ns=0, trace=None, record=True)

    theirs, odd = made(Theirs, -1), made(Odd, -2)
    for _ in range(2):
        with server.requests.step([theirs]):
            server.now += 5
    with server.requests.step([]):
        server.now += 5
    assert theirs._executed + server.requests._batches.metered(theirs) == 10
    assert server.errors == []
    with server.requests.step([theirs, odd]):
        server.now += 5
    assert server.errors == ["requests"]


def test_a_step_does_not_build_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(native, "load", lambda source: pytest.fail("loaded in a step"))
    batches.compiled.cache_clear()
    with server.requests.step([server.requests.request()]):
        pass


def test_what_is_no_slot_is_refused() -> None:
    class Loose:
        given = None

    module = batches.compiled()
    with pytest.raises(TypeError, match="is no slot"):
        module.Batches(LiveRequest, Loose, Loose(), print, print)
    with pytest.raises(AttributeError):
        module.Batches(Loose, Batch, batches.NOBODY, print, print)
    good = module.Batches(LiveRequest, Batch, batches.NOBODY, print, print)
    for wrong in [(), (1, 2, 3), (batches.NOBODY, "1", 2), (batches.NOBODY, 2**80, 0)]:
        with pytest.raises((TypeError, OverflowError)):
            good.turn(*wrong)
