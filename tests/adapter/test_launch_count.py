"""The count in C: what the Python statement does, for the same cells, and nothing at all where that would raise."""

from __future__ import annotations

import contextlib
import enum
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe import native
from tritonprobe.adapter import binder
from tritonprobe.adapter.rewrite import RewriteError
from tritonprobe.adapter.sites import Shape, Site, own_key, plain_key
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.buckets import parse_spec, pow2

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")
Count = Callable[..., None]
plain = st.integers() | st.booleans() | st.none() | st.text()


@pytest.fixture(scope="module")
def counter() -> Callable[[int, int], Count]:
    module = native.load(binder.COUNT_SOURCE)
    assert module is not None
    found: Callable[[int, int], Count] = module.Counter
    return found


@pytest.fixture(scope="module")
def add_one(counter: Callable[[int, int], Count]) -> Count:
    """One count by a counter that has seen nothing before. The n-th key may be rounded if that bit of `mask` is set."""

    def add(cells: object, mask: int, *keys: object) -> None:
        counter(len(keys), mask)(cells, *keys)

    return add


def doubles(*values: float) -> memoryview[float]:
    found = memoryview(bytearray(8 * len(values))).cast("d")
    for i, value in enumerate(values):
        found[i] = value
    return found


@given(keys=st.lists(st.tuples(plain, plain), max_size=30), known=st.sets(st.tuples(plain, plain), max_size=10))
def test_it_counts_and_misses_as_the_statement_does(
    add_one: Count, keys: list[tuple[Any, Any]], known: set[tuple[Any, Any]]
) -> None:
    ours: dict[Any, dict[Any, memoryview[float]]] = {}
    theirs: dict[Any, dict[Any, list[float]]] = {}
    for a, b in known:
        ours.setdefault(own_key(a), {})[own_key(b)] = doubles(0.0)
        theirs.setdefault(own_key(a), {})[own_key(b)] = [0.0]
    for a, b in [*keys, *known]:
        try:
            theirs[own_key(a)][own_key(b)][0] += 1.0
        except KeyError:
            with pytest.raises(KeyError):
                add_one(ours, 0, a, b)
        else:
            add_one(ours, 0, a, b)
    for a, by in theirs.items():
        for b, cell in by.items():
            assert ours[a][b][0] == cell[0]


def test_a_cell_may_be_a_list(add_one: Count) -> None:
    cell = [1.5]
    add_one({None: cell}, 0, None)
    assert cell == [2.5]


@pytest.mark.parametrize(
    "cell",
    [
        [],
        [1],
        (1.0,),
        1.0,
        None,
        {},
        memoryview(bytearray(8)).cast("q"),
        memoryview(bytearray(4)).cast("f"),
        memoryview(bytes(8)).cast("d"),
        memoryview(bytearray(0)).cast("d"),
        memoryview(bytearray(32)).cast("d", (2, 2)),
    ],
    ids=repr,
)
def test_any_other_cell_is_refused_and_left_alone(add_one: Count, cell: Any) -> None:
    before = repr(cell) if not isinstance(cell, memoryview) else cell.tobytes()
    with pytest.raises(TypeError):
        add_one({1: cell}, 0, 1)
    assert before == (repr(cell) if not isinstance(cell, memoryview) else cell.tobytes())


def test_a_released_cell_is_not_written_to(add_one: Count) -> None:
    cell = doubles(1.0)
    cell.release()
    with pytest.raises(TypeError):
        add_one({1: cell}, 0, 1)


def test_keys_that_would_run_python_are_refused(add_one: Count) -> None:
    class Number(int):
        def __hash__(self) -> int:
            raise AssertionError("it was asked")

    class Folder(dict[int, Any]):
        pass

    for cells, key in (({1: doubles(0.0)}, 1.0), (Folder({1: doubles(0.0)}), 1), ({1: doubles(0.0)}, [])):
        with pytest.raises(TypeError):
            add_one(cells, 0, key)
    cell = doubles(0.0)
    add_one({1: cell}, 0, Number(1))
    assert cell[0] == 1, "as the number that it is, without asking it"


class Mode(enum.IntEnum):
    NONE = 0
    FP8 = 1


class Layout(str):
    __slots__ = ()


numbers = (
    st.integers(-5, 5) | st.integers(-(2**63) - 1, 2**64) | st.sampled_from([0, 1, 2, 4, 2**62, 2**62 + 1, -(2**63)])
)
texts = st.sampled_from(["fp8", "none", Layout("fp8"), "e\u0301", ""])
anything = numbers | texts | st.booleans() | st.none() | st.sampled_from(Mode)


@given(launches=st.lists(st.tuples(anything, anything, anything), max_size=40), rounds=st.tuples(*3 * [st.booleans()]))
def test_a_counter_that_remembers_its_latest_launches_counts_as_one_that_does_not(
    counter: Callable[[int, int], Count], launches: list[tuple[Any, ...]], rounds: tuple[bool, ...]
) -> None:
    rules = parse_spec({name: "pow2" if rounds[i] else "exact" for i, name in enumerate("abc")})
    shape = Shape(rules)
    names: dict[str, list[memoryview[float]]] = {}
    count = counter(3, shape.rounded)
    plainly: dict[str, int] = {}
    for launch in launches:
        key = plain_key(launch)
        name = rules.name(dict(zip("abc", key, strict=True)))
        plainly[name] = plainly.get(name, 0) + 1
        try:
            count(shape.hot, *launch)
        except KeyError:
            (cell,) = names.setdefault(name, [doubles(0.0)])
            cell[0] += 1
            shape.remember(key, cell)
    assert {name: cell[0] for name, (cell,) in names.items()} == plainly


def test_a_launch_is_remembered_for_its_own_cells_only(counter: Callable[[int, int], Count]) -> None:
    """While a trial runs, the binder is given an empty dict, so that each call goes to `Site.miss`."""
    count, cell, other = counter(2, 0), doubles(0.0), doubles(0.0)
    hot = {1: {2: cell}}
    for _ in range(3):
        count(hot, 1, 2)
        with pytest.raises(KeyError):
            count({}, 1, 2)
        count({1: {2: other}}, 1, 2)
    assert (cell[0], other[0]) == (3, 3)


def test_what_is_remembered_is_let_go(counter: Callable[[int, int], Count]) -> None:
    key, cell = "a key of a launch" * 2, doubles(0.0)
    cells = {key: cell}
    before = [sys.getrefcount(each) for each in (key, cell, cells)]
    count = counter(1, 0)
    count(cells, key)
    assert [sys.getrefcount(each) for each in (key, cell, cells)] == [held + 1 for held in before]
    for i in range(20):
        count({i: doubles(0.0)}, i)
    assert [sys.getrefcount(each) for each in (key, cell, cells)] == before
    count(cells, key)
    del count
    assert [sys.getrefcount(each) for each in (key, cell, cells)] == before


def test_a_cell_that_was_released_meanwhile_is_not_written_to(counter: Callable[[int, int], Count]) -> None:
    count, cell = counter(1, 0), doubles(0.0)
    count({1: cell}, 1)
    cells = {1: cell}
    count(cells, 1)
    cell.release()
    with pytest.raises(TypeError):
        count(cells, 1)


def test_many_keys_come_in_tuples(counter: Callable[[int, int], Count]) -> None:
    count, cell = counter(5, 0b10000), doubles(0.0)
    cells = {1: {2: {3: {4: {8: cell}}}}}
    for fifth in (8, 7, 5):
        count(cells, (1, 2), (3, 4, fifth))
        count(cells, 1, 2, 3, 4, fifth)
    assert cell[0] == 6
    for wrong in (((1, 2), (3, 4)), ((1, 2), (3, 4, 5, 6)), ((1, 2), [3, 4, 8]), (1, 2), ()):
        with pytest.raises(TypeError):
            count(cells, *wrong)


@pytest.mark.parametrize("size", [0, -1, 257])
def test_a_counter_of_no_keys_or_too_many_is_refused(counter: Callable[[int, int], Count], size: int) -> None:
    with pytest.raises(ValueError, match="1 to 256"):
        counter(size, 0)


@pytest.mark.parametrize("dims", [28, 29, 41, 256, 257])
def test_a_kernel_of_many_dimensions_is_counted(
    instrumented: Runtime, misses: list[Any], dims: int, tmp_path: Path
) -> None:
    names = ", ".join(f"n{i}" for i in range(dims))
    file = tmp_path / "many.py"
    file.write_text(f"import triton.language as tl\n\ndef many(x, {names}):\n    tl.store(x, n0 + n{dims - 1})\n")
    space = runpy.run_path(str(file))
    space["many"].__globals__.update(space)
    kernel = triton.jit(space["many"])
    for _ in range(4):
        kernel[(1,)](X, *range(3, 3 + dims))
    assert len(misses) == 1, "the first launch"
    assert total_of(instrumented, "launches_total") == 4


@given(value=st.integers(-(2**65), 2**65) | st.integers(-3, 70), may=st.booleans(), edges=st.sets(st.integers(0, 64)))
def test_a_number_that_is_not_there_is_the_next_power_of_two_if_it_may_be(
    add_one: Count, value: int, may: bool, edges: set[int]
) -> None:
    cells = {edge: doubles(0.0) for edge in (0, *(1 << place for place in edges))}
    wanted = value if value in cells else int(pow2(value)) if may and int(pow2(value)) <= 1 << 62 else None
    if wanted in cells and wanted is not None:
        add_one({"x": cells}, 2 if may else 0, "x", value)
    else:
        with pytest.raises(KeyError):
            add_one({"x": cells}, 2 if may else 0, "x", value)
    assert {edge: cell[0] for edge, cell in cells.items() if cell[0]} == ({wanted: 1.0} if wanted in cells else {})


def test_each_dimension_has_its_own_bit(add_one: Count) -> None:
    cell = doubles(0.0)
    cells = {8: {8: cell}}
    add_one(cells, 0b11, 5, 7)
    with pytest.raises(KeyError):
        add_one(cells, 0b01, 5, 7)
    with pytest.raises(KeyError):
        add_one(cells, 0b10, 5, 7)
    assert cell[0] == 1


@pytest.fixture
def misses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys of launches that took Python's slow way to be counted."""
    found: list[Any] = []
    before = Site.miss

    def miss(site: Site, shape: Any, key: Any) -> None:
        found.append(key)
        before(site, shape, key)

    monkeypatch.setattr(Site, "miss", miss)
    return found


def test_a_number_that_changes_with_each_launch_is_counted_without_python(
    instrumented: Runtime, misses: list[Any]
) -> None:
    """A seed, or a length that grows with each step."""
    kernel = fresh(kernels.add_kernel)
    for n in range(1000, 1100):
        kernel[(1,)](X, X, X, n, BLOCK=128)
    assert misses == [1000, 1025], "the first of each bucket"
    counted = {labels[1]: count for labels, count in samples_of(instrumented, "launches_total").items()}
    assert counted == {"n<=1024": 25, "n<=2048": 75}


@pytest.mark.parametrize(("value", "plain"), [(Mode.FP8, 1), (Layout("rows"), "rows")])
def test_a_value_of_a_subclass_is_found_as_the_number_or_text_that_it_is(
    add_one: Count, value: Any, plain: Any
) -> None:
    cell = doubles(0.0)
    add_one({plain: {value: cell}}, 0, value, plain)
    assert cell[0] == 1
    with pytest.raises(KeyError):
        add_one({}, 0, value)


def test_a_kernel_with_an_enumeration_among_its_arguments_has_no_slow_launches(
    instrumented: Runtime, misses: list[Any]
) -> None:
    """As vLLM's attention has: a key that is never remembered would send every launch through `Site.miss`."""
    kernel = fresh(kernels.add_kernel)
    for _ in range(10):
        kernel[(1,)](X, X, X, Five(5), BLOCK=128)
    assert misses == [5], "the first launch"
    assert total_of(instrumented, "launches_total") == 10


def test_a_bool_has_no_slow_launches_either(instrumented: Runtime, misses: list[Any]) -> None:
    kernel = tritonprobe.probe(bucket={"n": "exact"})(fresh(kernels.add_kernel))
    for _ in range(5):
        for n in (1, True):
            kernel[(1,)](X, X, X, n, BLOCK=128)
    assert list(map(repr, misses)) == ["1", "True"], "the first launch of each"
    counted = {labels[1]: count for labels, count in samples_of(instrumented, "launches_total").items()}
    assert counted == {"n=1": 5, "n=True": 5}


def test_launches_are_counted_by_it(instrumented: Runtime, add: Callable[..., Any]) -> None:
    x = torch.zeros(128)
    for _ in range(5):
        add(x, x, x, 128)
    assert instrumented.adapter.counting == "native"
    assert total_of(instrumented, "launches_total") == 5


def test_without_a_compiler_launches_are_counted_in_python(
    runtime: Runtime, add: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "_loaded", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "/nowhere/cc")
    tritonprobe.instrument()
    x = torch.zeros(128)
    for _ in range(5):
        add(x, x, x, 128)
    assert runtime.adapter.counting == "inline"
    assert total_of(runtime, "launches_total") == 5


class Five(int):
    pass


class Proxy:
    """Says that it is a number, as proxies do of what they stand for."""

    __class__ = int  # type: ignore[assignment]


class One(int):
    pass


VALUES = (
    Proxy(),
    5,
    5.0,
    True,
    False,
    1,
    0,
    1.0,
    "1",
    One(1),
    Five(5),
    None,
    "a",
    float("nan"),
    -1,
    2**70,
    np.int64(5),
    np.float32(5),
    torch.tensor(5),
)
X = torch.zeros(128)


def refuse(*args: Any) -> Any:
    raise RewriteError("an unknown Triton")


@given(values=st.lists(st.sampled_from(VALUES), max_size=30), rule=st.sampled_from(["exact", "pow2", (1, 8)]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_ways_to_count_put_a_value_into_the_same_bucket(
    instrumented: Runtime, values: list[Any], rule: Any
) -> None:
    """Whatever came before it. The binder counts before it binds, so nothing is compiled for these."""
    spec = parse_spec({"n": rule})

    def counted_by(way: str) -> dict[tuple[str, ...], float]:
        with pytest.MonkeyPatch.context() as patch:
            if way == "inline":
                patch.setattr(instrumented.adapter._binders, "_counter", None)
            if way == "pre_run_hook":
                patch.setattr(binder, "counting_binder", refuse)
            kernel = tritonprobe.probe(bucket={"n": rule})(fresh(kernels.add_kernel))
            kernel[(1,)](X, X, X, 128, BLOCK=128)
        site = instrumented.adapter.registry.site(kernel)
        assert site is not None
        assert site.strategy == way
        ((*_, bind),) = kernel.device_caches.values()
        (count,) = kernel.pre_run_hooks or [bind]
        before = samples_of(instrumented, "launches_total")
        for value in values:
            with contextlib.suppress(TypeError, OverflowError):  # Triton knows no class for it
                count(X, X, X, value, BLOCK=128)
        after = samples_of(instrumented, "launches_total")
        return {labels: more for labels in after if (more := after[labels] - before.get(labels, 0))}

    native_, inline, hook = (counted_by(way) for way in ("native", "inline", "pre_run_hook"))
    assert native_ == inline == hook
    plainly: dict[str, int] = {}
    for value in values:
        name = spec.name({"n": value})
        plainly[name] = plainly.get(name, 0) + 1
    assert {labels[1]: count for labels, count in native_.items()} == plainly
