"""Attribution against a model of what a GPU records: whatever is labelled is right, and what could be, is labelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_records.fake_gpu import raw
from tritonprobe.gpu import launch_log
from tritonprobe.gpu.attribution import attribute, columns
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import Records, read
from tritonprobe.seen import Label, Seen


@dataclass(frozen=True)
class Kernel:
    """A binary; the key of a launch is its bucket."""

    name: str
    kernel_name: str
    ctas: int = 1

    def label(self, key: Any) -> Label:
        return self.kernel_name, str(key)


A, B, OTHERS_A = Kernel("a", "m.a"), Kernel("b", "m.b", ctas=2), Kernel("a", "n.a")
NAMES = ["a", "b", "foreign"]


@dataclass
class World:
    """Launches with their places in the order, and the records that a GPU would leave of them."""

    seen: list[Seen] = field(default_factory=list)
    rows: list[dict[str, int]] = field(default_factory=list)
    truth: list[Label | None] = field(default_factory=list)  # of each record; None: nobody launched it through us

    def launch(
        self, kernel: Kernel, bucket: Any, grid: int, before: int, after: int, *,
        leaves: bool = True, returned: bool = True, trial: bool = False,
    ) -> None:  # fmt: skip
        self.seen.append(Seen(kernel, (grid, 1, 1, 0), bucket, before, after, before, after, returned, trial, None))
        if leaves:
            self.record(kernel.name, grid * kernel.ctas, None if trial else kernel.label(bucket))

    def record(self, name: str, grid: int, label: Label | None = None) -> None:
        self.rows.append({"name": NAMES.index(name), "x": grid, "correlation": len(self.rows)})
        self.truth.append(label)

    def labels(self, edges: Edges = Edges(0, 1, 10**6, 10**6 + 1)) -> list[Label | str | None]:  # noqa: B008
        records: Records = read([raw(self.rows)], 216)
        log = launch_log.new(max(1, len(self.seen)))
        for each in self.seen:
            log.append(each)
        launches = columns(launch_log.logged(log), edges)
        found = attribute(launches, records, [NAMES[n] for n in records.classes.name.tolist()])
        self.found = found
        words = {-1: "foreign", -2: "dropped"}
        labels = found.label(records.which).tolist()
        return [words.get(i, found.labels[i] if i >= 0 else None) for i in labels]


def test_each_launch_has_its_record() -> None:
    world = World()
    for place, (kernel, bucket, grid) in enumerate([(A, 1, 3), (B, 1, 3), (A, 2, 4), (A, 1, 3)]):
        world.launch(kernel, bucket, grid, 10 * place + 2, 10 * place + 3)
    assert world.labels() == world.truth
    pairs = zip(np.arange(4)[world.found.records], np.arange(4)[world.found.launches], strict=True)
    assert sorted(pairs) == [(n, n) for n in range(4)]
    assert (world.found.matched, world.found.dropped) == (4, {})


def test_launches_that_changed_places_have_their_own_records() -> None:
    world = World()
    for kernel, before, after in ((B, 2, 7), (A, 3, 6), (A, 8, 11), (B, 9, 10)):
        world.launch(kernel, 1, 3, before, after, leaves=False)
    world.record("foreign", 3)
    for kernel in (A, B, B, A):
        world.record(kernel.name, 3 * kernel.ctas)
    assert world.labels() == ["foreign", ("m.a", "1"), ("m.b", "1"), ("m.b", "1"), ("m.a", "1")]
    pairs = zip(np.arange(5)[world.found.records], np.arange(4)[world.found.launches], strict=True)
    assert sorted(pairs) == [(1, 1), (2, 0), (3, 3), (4, 2)]


def test_an_empty_grid_leaves_no_record() -> None:
    world = World()
    world.launch(A, 1, 0, 2, 3, leaves=False)
    world.launch(A, 2, 3, 4, 5)
    assert world.labels() == [("m.a", "2")]


def test_a_grid_too_large_for_the_launcher_may_have_left_no_record() -> None:
    world = World()
    world.launch(A, 1, 2**31, 2, 3, leaves=False)
    world.launch(A, 2, 3, 4, 5)
    assert world.labels() == [("m.a", "2")]
    assert world.found.dropped == {"edge": 1}


def test_a_grid_of_clusters_is_as_wide_as_its_blocks() -> None:
    world = World()
    world.launch(B, 1, 5, 2, 3)
    assert world.rows[0]["x"] == 10
    assert world.labels() == [("m.b", "1")]


def test_foreign_kernels_are_nobodys() -> None:
    world = World()
    world.record("foreign", 3)
    world.launch(A, 1, 3, 2, 3)
    world.record("a", 99)  # ours by name, but no launch of ours had such a grid
    assert world.labels() == ["foreign", ("m.a", "1"), "foreign"]


def test_one_record_too_many_or_too_few_gives_its_name_and_grid_up() -> None:
    for extra in (True, False):
        world = World()
        world.launch(A, 1, 3, 2, 3)
        world.launch(A, 1, 3, 4, 5, leaves=extra)
        world.launch(A, 2, 4, 6, 7)
        if extra:
            world.record("a", 3)
        assert world.labels() == ["dropped"] * (3 if extra else 1) + [("m.a", "2")] or extra
        assert ("m.a", "2") in world.labels()
        assert ("m.a", "1") not in world.labels()
        assert world.found.dropped == {"misaligned": 2}


def test_order_tells_buckets_of_one_grid_apart() -> None:
    world = World()
    for place, bucket in enumerate([1, 2, 2, 1, 3]):
        world.launch(A, bucket, 3, 2 * place + 2, 2 * place + 3)
    assert world.labels() == world.truth


def test_two_kernels_of_one_name_are_told_apart_by_order() -> None:
    world = World()
    for place, kernel in enumerate([A, OTHERS_A, A]):
        world.launch(kernel, 1, 3, 2 * place + 2, 2 * place + 3)
    assert world.labels() == [("m.a", "1"), ("n.a", "1"), ("m.a", "1")]


def test_launches_that_overlap_are_dropped_where_that_matters() -> None:
    world = World()
    world.launch(A, 1, 3, 2, 5)
    world.launch(A, 2, 3, 3, 4)  # another thread's, at the same time
    world.launch(A, 2, 3, 6, 7)
    world.launch(A, 9, 4, 8, 11)
    world.launch(A, 9, 4, 9, 10)
    assert world.labels() == ["dropped", "dropped", ("m.a", "2"), ("m.a", "9"), ("m.a", "9")]
    assert world.found.dropped == {"ambiguous": 2}


def test_a_launch_that_raised_and_left_a_record_leaves_doubt_about_all_of_its_name_and_grid() -> None:
    for leaves in (True, False):
        world = World()
        world.launch(A, 1, 3, 2, 3)
        world.launch(A, 2, 3, 4, 5, leaves=leaves, returned=False)
        world.launch(A, 3, 3, 6, 7)
        assert world.labels() == (["dropped"] * 3 if leaves else world.truth)


def test_doubt_at_both_edges_is_not_decided() -> None:
    """One record too many for the certain launches: it is the first's or the last's, and that shifts all labels."""
    world = World()
    world.launch(A, 1, 3, 5, 12)  # while records were switched on
    world.launch(A, 2, 3, 20, 21)
    world.launch(A, 3, 3, 88, 95, leaves=False)  # while they were switched off
    assert world.labels(Edges(10, 11, 90, 91)) == ["dropped", "dropped"]


def test_doubt_at_an_edge_does_not_matter_within_one_bucket() -> None:
    world = World()
    world.launch(A, 1, 3, 5, 12)
    world.launch(A, 1, 3, 20, 21)
    world.launch(A, 1, 3, 88, 95, leaves=False)
    assert world.labels(Edges(10, 11, 90, 91)) == [("m.a", "1")] * 2


def test_trials_are_nobodys_time() -> None:
    world = World()
    world.launch(A, 1, 3, 2, 3, trial=True)
    world.launch(A, 1, 3, 4, 5)
    assert world.labels() == [None, ("m.a", "1")]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, Edges]:
    """Several threads launching at once: each launch reaches the GPU at some moment inside its interval."""
    events: list[tuple[float, int, str]] = []  # time, launch, what
    plans: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        clock = draw(st.floats(0, 1))
        for _ in range(draw(st.integers(0, 8))):
            begin = clock + draw(st.floats(0.01, 1))
            reached, end = sorted((begin + draw(st.floats(0, 1)), begin + draw(st.floats(0, 1))))
            number = len(plans)
            plans.append(
                (
                    draw(st.sampled_from([A, A, B, OTHERS_A])),
                    draw(st.integers(1, 2)),
                    draw(st.integers(0, 2)),
                    draw(st.booleans()) or draw(st.booleans()),
                    draw(st.booleans()),
                )
            )
            events += [(begin, number, "before"), (reached, number, "reaches"), (end, number, "after")]
            clock = end
    on, off = sorted((draw(st.floats(0, 4)), draw(st.floats(3, 14))))
    width = draw(st.floats(0, 0.5))
    switches = [(on - width, -1, "opening"), (on, -1, "on"), (on + width, -1, "opened")]
    switches += [
        (max(off, on + width) + w, -1, what) for w, what in ((0, "closing"), (width, "off"), (2 * width, "closed"))
    ]
    world, places, recording = World(), {}, False
    order: list[int] = []
    for place, (_, number, what) in enumerate(sorted(events + switches, key=lambda event: event[0])):
        places[number, what] = place
        if what in ("on", "off"):
            recording = what == "on"
        leaves = number >= 0 and plans[number][2] > 0 and (plans[number][3] or plans[number][4])  # one that raises may
        if what == "reaches" and leaves and recording:
            order.append(number)
    for number, (kernel, bucket, grid, returned, _) in enumerate(plans):
        before, after = places[number, "before"], places[number, "after"]
        world.seen.append(Seen(kernel, (grid, 1, 1, 0), bucket, before, after, 0, 0, returned, False, None))
    for number in order:
        kernel, bucket, grid, _, _ = plans[number]
        world.record(kernel.name, grid * kernel.ctas, kernel.label(bucket))
    world.seen = draw(st.permutations(world.seen))
    edges = Edges(*(places[-1, what] for what in ("opening", "opened", "closing", "closed")))
    return world, edges


@settings(max_examples=500, deadline=None)
@given(worlds())
def test_whatever_is_labelled_is_right(found: tuple[World, Edges]) -> None:
    world, edges = found
    for said, true in zip(world.labels(edges), world.truth, strict=True):
        assert said in ("dropped", true)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, OTHERS_A]), st.integers(1, 3), st.integers(0, 3)), max_size=30))
def test_one_thread_loses_nothing(plan: Sequence[tuple[Kernel, int, int]]) -> None:
    world = World()
    for place, (kernel, bucket, grid) in enumerate(plan):
        world.launch(kernel, bucket, grid, 2 * place + 2, 2 * place + 3, leaves=grid > 0)
    assert world.labels() == world.truth
