"""The two rewrites, and everything they refuse: a function that is not exactly what was read is left alone."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
from triton.runtime import jit
from triton.runtime.autotuner import Autotuner

from tests.adapter import kernels
from tests.adapter.conftest import fresh
from tritonprobe.adapter import sites
from tritonprobe.adapter.rewrite import RewriteError, counting_binder, guard, wrapped
from tritonprobe.adapter.sites import Shape
from tritonprobe.shapes.buckets import BucketSpec


class Thing:
    def plain(self, a: int, *, b: int = 2) -> int:
        return a // b

    def closed(self, a: int) -> int:
        return a + __class__.__name__.count("T")  # type: ignore[name-defined]

    @functools.lru_cache  # noqa: B019
    def cached(self) -> int:
        return 1


def guarded(function: Any, watch: list[None], log: list[str], way: Any = guard) -> Any:
    return way(function, raised=lambda self: log.append("raised"), ended=lambda self: log.append("ended"), watch=watch)


@pytest.mark.parametrize("way", [guard, wrapped])
def test_it_tells_of_exceptions_and_of_ends_while_watched(way: Any) -> None:
    log: list[str] = []
    watch: list[None] = []
    plain = guarded(Thing.plain, watch, log, way)

    assert plain(Thing(), 6) == 3
    assert log == []
    watch.append(None)
    assert plain(Thing(), 6, b=3) == 2
    assert log == ["ended"]
    with pytest.raises(ZeroDivisionError):
        plain(Thing(), 6, b=0)
    assert log == ["ended", "raised", "ended"]


def test_what_we_raise_is_shown_at_the_functions_first_line_and_its_own_errors_where_they_are() -> None:
    def refuse(_: Any) -> None:
        raise LookupError

    def watched(watch: list[None], prelude: str) -> Any:
        function: Any = Thing.plain
        names = {"refuse": refuse}
        return guard(function, raised=lambda _: None, ended=refuse, watch=watch, prelude=prelude, names=names)

    for ours in (watched([None], "pass"), watched([], "refuse(self)")):
        with pytest.raises(LookupError) as caught:
            ours(Thing(), 6)
        assert str(caught.traceback[1].statement).strip() == "def plain(self, a: int, *, b: int = 2) -> int:"
    with pytest.raises(ZeroDivisionError) as its_own:
        watched([], "pass")(Thing(), 6, b=0)
    assert str(its_own.traceback[-1].statement).strip() == "return a // b"


def test_a_wrapper_asks_first_and_may_answer_itself() -> None:
    asked: list[Any] = []

    def first(thing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        asked.append((args, kwargs))
        return ("ours",) if kwargs.get("b") == 5 else None

    def never(_: Any) -> None:
        pytest.fail("nothing was called")

    plain = wrapped(Thing.plain, raised=never, ended=never, watch=[], first=first)
    assert (plain(Thing(), 6), plain(Thing(), 6, b=5)) == (3, "ours")
    assert asked == [((6,), {}), ((6,), {"b": 5})]
    assert inspect.signature(plain) == inspect.signature(Thing.plain)


def test_a_guarded_function_looks_like_the_original() -> None:
    plain = guarded(Thing.plain, [], [])
    assert inspect.signature(plain) == inspect.signature(Thing.plain)
    assert (plain.__name__, plain.__qualname__, plain.__module__) == ("plain", "Thing.plain", __name__)
    assert plain.__code__.co_filename == Thing.plain.__code__.co_filename
    assert plain.__code__.co_firstlineno == Thing.plain.__code__.co_firstlineno


@pytest.mark.parametrize("launcher", [jit.JITFunction, Autotuner])
def test_this_tritons_launch_functions_can_be_guarded(launcher: Any) -> None:
    assert inspect.signature(guarded(launcher.run, [], [])) == inspect.signature(launcher.run)


@pytest.mark.parametrize("function", [Thing.closed, Thing.cached, len, lambda self: 1])
def test_anything_else_is_refused(function: Any) -> None:
    with pytest.raises(RewriteError):
        guarded(function, [], [])


def test_a_function_that_somebody_wrapped_is_refused() -> None:
    @functools.wraps(Thing.plain)
    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return Thing.plain(self, *args, **kwargs)

    with pytest.raises(RewriteError):
        guarded(theirs, [], [])


def test_a_source_that_is_not_what_runs_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "module.py"
    file.write_text("class A:\n    def run(self, x):\n        return x + 1\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    proven = "class A:\n    def run(self, x):\n        return x + 1\n"
    file.write_text("class A:\n    def run(self, x):\n        return x + 2\n")
    with pytest.raises(RewriteError, match="not what runs"):
        guarded(space["A"].run, [], [])

    file.write_text(proven)
    assert guarded(space["A"].run, [], [])(None, 1) == 2
    file.write_text("what was proven of running code stays true")
    assert guarded(space["A"].run, [], [])(None, 2) == 3


def _arguments(kernel: Any) -> tuple[Any, ...]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32))


ALL = [
    (kernels.add_kernel, ("n",), ("x", "y", "o", 64), {"BLOCK": 64}),
    (kernels.defaults_kernel, ("n",), (3, 4), {}),
    (kernels.annotated_kernel, ("n",), (3, 5, 2.0), {"BLOCK": 64}),
    (kernels.fixed_kernel, (), (3,), {"BLOCK": 64, "num_warps": 8}),
    (kernels.dot_kernel, ("n", "SIZE"), (1, 2, 3, 16), {"SIZE": 16}),
]


@pytest.mark.parametrize(("kernel", "dims", "args", "kwargs"), ALL)
def test_a_counting_binder_binds_as_tritons_does(kernel: Any, dims: Any, args: Any, kwargs: Any) -> None:
    missed: list[Any] = []
    plain, counting = counting_binder(
        jit.create_function_from_signature, _arguments(fresh(kernel)), dims, {}, missed.append
    )
    args = tuple(3 if isinstance(a, str) else a for a in args)
    assert counting(*args, **kwargs) == plain(*args, **kwargs)
    assert len(missed) == 1


def test_a_counting_binder_counts_a_known_shape_without_asking() -> None:
    cell = [0.0]
    _, counting = counting_binder(
        jit.create_function_from_signature, _arguments(fresh(kernels.add_kernel)), ("n",), {64: cell}, pytest.fail
    )
    for _ in range(5):
        counting(1, 2, 3, 64, BLOCK=64)
    assert cell == [5.0]


def test_several_dimensions_are_looked_up_one_in_the_other() -> None:
    shape = Shape(BucketSpec((("n", "exact"), ("SIZE", "exact"))))
    cell, missed = [0.0], list[Any]()
    shape.remember((64, 16), cell)
    _, counting = counting_binder(
        jit.create_function_from_signature, _arguments(fresh(kernels.dot_kernel)), shape.dims, shape.hot, missed.append
    )
    for n, size in ((64, 16), (64, 32), (64, 16), (128, 16)):
        counting(1, 2, 3, n, SIZE=size)
    assert cell == [2.0]
    assert missed == [(64, 32), (128, 16)]
    assert shape.cell((64, 16)) is cell
    assert shape.cell((128, 16)) is None


def test_the_number_of_remembered_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MAX_SHAPES", 3)
    shape = Shape(BucketSpec((("n", "exact"),)))
    for n in range(10):
        shape.remember(n, [0.0])
    assert set(shape.hot) == {9}


def test_an_argument_that_cannot_be_a_key_goes_to_miss_and_not_to_the_caller() -> None:
    missed: list[Any] = []
    plain, counting = counting_binder(
        jit.create_function_from_signature, _arguments(fresh(kernels.tuple_kernel)), ("shape",), {}, missed.append
    )
    assert counting(1, (3, 16), 5, BLOCK=64) == plain(1, (3, 16), 5, BLOCK=64)
    assert missed == [(3, 16)]


def test_dimensions_that_are_no_parameters_are_refused() -> None:
    with pytest.raises(RewriteError, match="no parameters"):
        counting_binder(
            jit.create_function_from_signature, _arguments(fresh(kernels.add_kernel)), ("zzz",), {}, pytest.fail
        )


def test_a_generator_that_is_not_tritons_is_refused() -> None:
    def closure(real: Any) -> Any:
        def generate(*args: Any) -> Any:
            return real(*args)

        return generate

    with pytest.raises(RewriteError, match="generator"):
        counting_binder(
            closure(jit.create_function_from_signature), _arguments(fresh(kernels.add_kernel)), ("n",), {}, pytest.fail
        )
