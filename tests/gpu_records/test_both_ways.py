"""What C finds of a window, numpy finds, too; and both find what looking at each record by itself does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_records import reference
from tests.gpu_records.fake_gpu import raw, sums
from tests.gpu_records.test_attribution import NAMES, Kernel, World, worlds
from tritonprobe import native
from tritonprobe.gpu import launch_log, matching, reading, spans
from tritonprobe.gpu.analysis import analyse
from tritonprobe.gpu.graphs import Capture, Graphs
from tritonprobe.gpu.launch_log import Logged, Tuples, logged
from tritonprobe.gpu.matching import Edges
from tritonprobe.gpu.records import Records, grid_code, read
from tritonprobe.gpu.spans import Spans
from tritonprobe.seen import Seen

compiled: Any = launch_log.compiled()
needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module", autouse=True)
def way() -> None:
    """Both, within each test."""


FEW = st.integers(0, 3)
LARGE = st.integers(2**32 - 3, 2**32 - 1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from([10] * 30 + [4]),
            "start": st.integers(0, 2**62),
            "end": st.integers(0, 2**62),
            "device": FEW | LARGE,
            "x": FEW | st.just(2**31 - 1),
            "y": FEW | st.just(65535),
            "z": FEW | st.just(65535),
            "name": FEW | st.just(2**63),
            "node": FEW | st.just(2**63),
            "graph": FEW | LARGE,
            "correlation": FEW | LARGE,
        }
    ),
    max_size=40,
)


@needs_compiler
@pytest.mark.parametrize("stride", [160, 216])
@given(rows=ROWS, cut=st.integers(0, 40))
def test_records_are_read_alike(stride: int, rows: list[dict[str, int]], cut: int) -> None:
    chunks = [raw(rows[:cut], stride), raw(rows[cut:], stride)]
    found, expected = reading.read(chunks, stride), reading._read(chunks, stride)
    for column in ("start", "end", "correlation", "which", "node", "classes"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column
    assert (found.in_order, found.wrong) == (expected.in_order, expected.wrong)


TIMES = st.integers(-5, 40) | st.integers(-(2**61), 2**61)


@needs_compiler
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9), TIMES), max_size=60),
    st.lists(st.integers(-3, 40).map(float) | st.floats(-3, 40) | st.floats(1e-3, 1e15), max_size=8, unique=True),
    st.booleans(),
)
def test_times_are_counted_and_added_up_alike(
    drawn: list[tuple[int, int, int]], bounds: list[float], alike: bool
) -> None:
    of, since, until = (np.array([each[i] for each in drawn], np.int64) for i in range(3))
    edges = np.array(sorted(bounds))
    these = Spans(since, until, of[:0] if alike else of, np.array([1, -1, 0, 2, 1]), 3)
    cells, totals = np.zeros((3, len(edges) + 1), int), [0, 0, 0]
    for label, begin, end in drawn:
        row, span = 1 if alike else (1, -1, 0, 2, 1)[label], max(0, end - begin)
        if row >= 0:
            cells[row, sum(edge < span for edge in edges)] += 1
            totals[row] += span
    for found in (spans.tally(these, edges), spans._tally(these, edges)):
        assert found[0].tolist() == cells.tolist()
        assert [total % 2**64 for total in found[1].tolist()] == [total % 2**64 for total in totals]


@needs_compiler
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 20)), max_size=12), st.booleans())
def test_busy_times_are_the_same(drawn: list[tuple[int, int]], in_order: bool) -> None:
    times = sorted(drawn) if in_order else drawn
    start, end = (np.array(each, np.int64) for each in ([s for s, _ in times], [s + n for s, n in times]))
    busy = {t for begin, length in times for t in range(begin, begin + length)}
    assert spans.busy(start, end) == spans._busy(start, end) == len(busy)


@needs_compiler
@given(st.lists(st.tuples(FEW, FEW.map(lambda n: n - 1)), max_size=12), st.data())
def test_pairs_are_the_same(drawn: list[tuple[int, int]], data: st.DataObject) -> None:
    """Classes and kinds of other numbers, and keys as often among the one as among the other."""
    keys = np.array([key for _, key in drawn], np.int64)
    shuffled = data.draw(st.permutations(drawn)) if data.draw(st.booleans()) else drawn
    which, key_of_class = np.arange(len(drawn)), keys
    kind = np.array([3 * (key + 1) + each % 3 for each, key in shuffled], np.int64)
    key_of_kind = np.repeat(np.arange(-1, 3), 3)
    records, launches = matching.pair(which, key_of_class, kind, key_of_kind)
    expected = matching._pair(key_of_class[which], key_of_kind[kind])
    places, others = np.arange(len(which)), np.arange(len(kind))
    one, other = (
        sorted(zip(places[r].tolist(), others[n].tolist(), strict=True)) for r, n in ((records, launches), expected)
    )
    assert one == other


@needs_compiler
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans(), FEW), max_size=20))
def test_launches_are_sifted_alike(drawn: list[tuple[int, int, bool, int]]) -> None:
    columns = zip(*((before, before + took, 0, 0, returned, 7, kind) for before, took, returned, kind in drawn))  # noqa: B905
    numbers = np.array(list(columns), np.int64).reshape(7, -1)
    logged, sort, edges = Logged([], *numbers), np.array([0, 1, 2, 1]), Edges(5, 7, 20, 22)
    found, expected = matching.sift(logged, sort, edges), matching._sift(logged, sort, edges)
    assert (found.certain.tolist(), found.counts.tolist()) == (expected.certain.tolist(), expected.counts.tolist())
    assert np.arange(len(drawn))[found.chosen].tolist() == np.arange(len(drawn))[expected.chosen].tolist()


@needs_compiler
def test_what_leads_outside_of_an_array_is_refused() -> None:
    module: Any = spans.compiled()
    one, cells = np.zeros(1, np.int64), np.zeros((1, 2), np.int64)
    for of, rows in ((one + 1, one), (one - 1, one), (one, one + 1), (one, one - 2)):
        with pytest.raises(ValueError, match="outside"):
            module.tally(of, rows, one, one, np.zeros(1), cells, one.copy())
    with pytest.raises(ValueError, match="outside"):
        module.tally(one, one, one, one, np.zeros(2), cells, one.copy())
    with pytest.raises(ValueError, match="expected 8"):
        module.tally(one, one, one, cells, np.zeros(1), cells, one.copy())
    with pytest.raises(ValueError, match="expected 8"):
        module.busy(one, cells)
    with pytest.raises(ValueError, match="expected 8"):
        reading.compiled().read([raw([{}])], 216, *[np.empty(2, np.int64)] * 5)
    sift, pair = matching.compiled().sift, matching.compiled().pair
    with pytest.raises(ValueError, match="outside"):
        sift(one, one, one, one + 1, one, one.copy(), one.astype(bool), np.zeros(2, int), 0, 0, 0, 0)
    with pytest.raises(ValueError, match="too small"):
        sift(one, one, one, one, one, one.copy(), one.astype(bool), np.zeros(1, int), 0, 0, 0, 0)
    for which, kind in ((one + 1, one), (one, one - 1)):
        with pytest.raises(ValueError, match="outside"):
            pair(which, one, kind, one, one.copy(), one.copy())
    frozen = np.zeros(1, np.int64)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        reading.compiled().read([raw([{}])], 216, *[frozen] * 5)


class Itself:
    """A thing that is equal to nothing else."""


class Odd:
    """A thing that is compared by code of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


class Broken:
    """What cannot be hashed."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


SHAPES = (Itself(), Itself())
VALUES = st.recursive(
    st.sampled_from([None, True, False, -1, 0, 1, 2**62, 2**63 - 1, 2**64, 2**64 + 1, "", "a", "b", "\u1234", 1.5])
    | st.integers(-3, 300)
    | st.sampled_from(SHAPES)
    | st.builds(Odd, st.integers(0, 2)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
BINARIES = [Kernel("a", "m.a"), Kernel("b", "m.b")]
SEEN = st.builds(
    Seen,
    st.sampled_from(BINARIES),
    st.tuples(st.just(1), st.just(1), st.sampled_from([1, 2]), st.sampled_from([0, 2**63, 2**64])),
    st.sampled_from([2**64, 2**64 + 1, -(2**63) - 1])
    | VALUES
    | st.lists(st.integers(), max_size=1)
    | st.builds(Broken),
    *[st.integers(-(2**63), 2**63 - 1)] * 4,
    st.booleans(),
    st.booleans(),
    st.none(),
    st.integers(0, 9),
)


@needs_compiler
@settings(max_examples=300)
@given(st.lists(SEEN, max_size=30), st.integers(0, 100))
def test_launches_are_logged_alike(launches: list[Seen], copies: int) -> None:
    launches += launches[: copies // 4]
    ways = (compiled.Log(40), Tuples(40))
    for log in ways:
        for each in launches:
            log.append(each)
    found, expected = (logged(log) for log in ways)
    for column in ("before", "after", "start_ns", "end_ns", "returned", "thread"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column
    for kinds in (found, expected):
        assert [kinds.kinds[kind] for kind in kinds.kind.tolist()] == [
            (s.binary, s.target, s.key, s.trial) for s in launches[:40]
        ]
    assert len(found.kinds) == len(expected.kinds)


@needs_compiler
def test_many_kinds_are_told_apart_and_a_full_log_takes_no_more() -> None:
    log = compiled.Log(3000)
    for place in range(4000):
        key = SHAPES[0], (place % 1500,)
        log.append(Seen(BINARIES[0], (place % 1000, 1, 1, 0), key, 0, 0, 0, 0, True, False, None))
    found = logged(log)
    assert len(log) == len(found) == 3000
    assert len(found.kinds) == 3000  # 1000 and 1500 have 3000 as their least common multiple
    assert found.kind.tolist() == list(range(3000))


@needs_compiler
def test_what_is_no_launch_is_refused() -> None:
    log = compiled.Log(1)
    for wrong in (None, (), (0,) * 10):
        with pytest.raises(TypeError, match="takes a Seen"):
            log.append(wrong)
    with pytest.raises(TypeError):
        log.append(Seen(BINARIES[0], (1, 1, 1, 0), 0, "no number", 0, 0, 0, True, False, None))  # type: ignore[arg-type]
    assert len(log) == 0
    with pytest.raises(ValueError, match="at least one"):
        compiled.Log(0)


def log_of(seen: list[Seen], in_c: bool) -> Logged:
    log = compiled.Log(100) if in_c else Tuples(100)
    for each in seen:
        log.append(each)
    return logged(log)


@st.composite
def busy_worlds(draw: st.DrawFn) -> tuple[World, Edges]:
    """Launches of several threads, some of them trials, with others' records and graphs' in between."""
    world, edges = draw(worlds())
    trial = st.sampled_from([False, False, False, True])
    world.seen = [
        s._replace(trial=draw(trial), start_ns=7 * i, end_ns=7 * i + 3, thread=i) for i, s in enumerate(world.seen)
    ]
    rows = []
    for row in world.rows:
        rows += draw(st.lists(OTHERS, max_size=2))
        rows.append(row)
    rows += draw(st.lists(OTHERS, max_size=2))
    correlation = draw(st.sampled_from([0, 2**32 - 5]))
    clock = draw(st.lists(st.integers(1, 30), min_size=len(rows), max_size=len(rows)))
    world.rows = [
        {**row, "correlation": (correlation + i) % 2**32, "start": 20 * i + 5, "end": 20 * i + 5 + clock[i]}
        for i, row in enumerate(rows)
    ]
    world.rows = draw(st.permutations(world.rows))
    return world, edges


OTHERS = st.fixed_dictionaries(
    {"name": st.just(NAMES.index("foreign")), "x": FEW.map(lambda n: n + 1)}
) | st.fixed_dictionaries(
    {"name": st.just(0), "x": st.sampled_from([1, 2, 9]), "graph": st.integers(1, 2), "node": st.integers(1, 2)}
)


def by_label(world: World, records: Records, edges: Edges) -> tuple[Counter[Any], Counter[Any], Any]:
    """Records and nanoseconds by label, as the reference has it; a graph's kernels have their captures' labels."""
    alone = np.flatnonzero(records.graph == 0)
    names = records.name.astype(np.intp)
    found = reference.attribute(reference.columns(world.seen, edges), records.take(alone), NAMES, names[alone])
    counts: Counter[Any] = Counter()
    total: Counter[Any] = Counter()
    for place, label in zip(alone.tolist(), found.label.tolist(), strict=True):
        said = (NAMES[names[place]], "external") if label == -1 else found.labels[label] if label >= 0 else None
        if said is not None:
            counts[said] += 1
            total[said] += int(records.end[place] - records.start[place])
    labels, of = new_graphs().attribute(
        records.take(np.flatnonzero(records.graph != 0)), [NAMES[n] for n in records.classes.name.tolist()], 10**6
    )
    for place, label in zip(np.flatnonzero(records.graph != 0).tolist(), of.tolist(), strict=True):
        if label != -2:
            said = labels[label] if label >= 0 else (NAMES[names[place]], "external")
            counts[said] += 1
            total[said] += int(records.end[place] - records.start[place])
    return counts, total, found


def new_graphs() -> Graphs:
    graphs = Graphs()
    graphs.captured(Capture([(("a", grid_code(9, 1, 1)), ("m.a", "nine"))]))
    return graphs


@needs_compiler
@settings(max_examples=400, deadline=None)
@given(busy_worlds())
def test_windows_are_analysed_alike(drawn: tuple[World, Edges]) -> None:
    world, edges = drawn
    records = read([raw(world.rows)], 216)
    counts, total, expected = by_label(world, records, edges)
    for in_c in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            for module in () if in_c else (launch_log, matching, reading, spans):
                patch.setattr(module, "compiled", lambda: None)
            launches = log_of(world.seen, in_c)
            found = analyse(launches, records, edges, 10**6, new_graphs(), lambda address: NAMES[address], str)
        assert sums(found) == [(label, counts[label], total[label]) for label in found.labels if counts[label]]
        assert {label for label, _, _ in sums(found)} == counts.keys()
        assert (found.launched.matched, found.launched.dropped) == (expected.matched, expected.dropped)
        assert found.replayed == (records.graph != 0).sum()
        assert found.seen == len(world.seen)
        assert found.known is not None
        old = reference.columns(world.seen, edges)
        alone = records.start[records.graph == 0]
        told = [
            (start, old.start_ns[launch], old.place[launch], max(0, start - old.end_ns[launch]))
            for start, launch in zip(alone.tolist(), expected.launch.tolist(), strict=True)
            if launch >= 0
        ]
        known, queue = found.known, np.maximum(found.queue.until - found.queue.since, 0)
        said = zip(known.start_ns, known.launched_ns, known.thread, queue.tolist(), strict=True)
        assert sorted(said) == sorted(told)
