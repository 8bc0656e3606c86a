"""An op's calls in C: which calls are alike, what is remembered of them, and what is never kept."""

from __future__ import annotations

import enum
import gc
import os
import pickle
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.adapter.conftest import samples_of, total_of
from tritonprobe import native, op, pow2
from tritonprobe import runtime as runtime_module
from tritonprobe.adapter import device
from tritonprobe.adapter import op_call as op_module
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler here")
describes_tensors = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch describes no tensors to C"
)
NAME = "the.op"
X = torch.arange(64.0)


class Size(enum.IntEnum):
    SMALL = 1


@pytest.fixture(autouse=True)
def launching(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device where the value is the function's, not the fallback's."""
    monkeypatch.setattr("tritonprobe.adapter.op_call.is_compile_only", lambda: False)
    monkeypatch.setattr(device, "is_compile_only", lambda: False)
    yield
    assert runtime.adapter._watch.any == []


def asking(**options: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """An op that gives back what it got, and the calls for which it was asked for a bucket."""
    asked: list[tuple[Any, ...]] = []

    def bucket(*args: Any, **kwargs: Any) -> dict[str, Any]:
        asked.append((args, kwargs))
        return {"n": len(args)}

    @op(fallback=lambda *args, **kwargs: "fallback", bucket=bucket, name=NAME, **options)
    def same(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    return same, asked


def is_alike(one: tuple[tuple[Any, ...], dict[str, Any]], other: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    same, asked = asking()
    for args, kwargs in (one, other, one, other):
        assert same(*args, **kwargs) == (args, kwargs)
    assert len(asked) in (1, 2)
    return len(asked) == 1


def test_equal_plain_values_are_alike() -> None:
    text = "".join(["a", "b"])
    values = (1, -(2**62), 2.5, True, None, "ab", "", "\N{GREEK SMALL LETTER ALPHA}", torch.float16)
    others = (1, -(2**62), 2.5, True, None, text, "", "\N{GREEK SMALL LETTER ALPHA}", torch.float16)
    assert is_alike((values, {"k": 1}), (others, {"k": 1}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (True,)),
        ((1,), (1.0,)),
        ((0,), (None,)),
        ((0,), (False,)),
        ((1,), ("1",)),
        ((0.0,), (-0.0,)),
        ((1,), (1, 1)),
        ((1, 2), (2, 1)),
        (("ab", "c"), ("a", "bc")),
        (("\x00",), ("\x00\x00",)),
        (("\xe9",), ("\N{GREEK SMALL LETTER ALPHA}",)),
        ((torch.float16,), (torch.bfloat16,)),
        ((None,), ()),
    ],
)
def test_other_plain_values_are_not(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert not is_alike((one, {}), (other, {}))


def test_names_of_arguments_are_part_of_a_call() -> None:
    assert not is_alike(((), {"a": 1}), ((), {"b": 1}))
    assert not is_alike(((1,), {}), ((), {"a": 1}))
    assert not is_alike((("a", 1), {}), ((), {"a": 1}))


@describes_tensors
def test_tensors_are_alike_by_what_they_are_not_by_what_they_hold() -> None:
    same, asked = asking()
    for tensor in (torch.zeros(4, 6), torch.ones(4, 6), torch.ones(8, 6)[4:], torch.ones(4, 6, requires_grad=True)):
        same(tensor)
    assert len(asked) == 1


@describes_tensors
@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 7),
        torch.zeros(4),
        torch.zeros(4, 6, 1),
        torch.zeros(6, 4).t(),
        torch.zeros(8, 6)[::2],
        torch.zeros(4, 6, dtype=torch.float64),
        torch.zeros(4, 6, dtype=torch.int32),
        torch.nn.Parameter(torch.zeros(4, 6)),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{tuple(tensor.shape)}-{tensor.stride()}-{tensor.dtype}",
)
def test_tensors_of_another_type_shape_stride_or_dtype_are_not(other: torch.Tensor) -> None:
    same, asked = asking()
    for tensor in (torch.zeros(4, 6), other, torch.zeros(4, 6), other):
        assert same(tensor)[0][0] is tensor
    assert [args[0] is other for args, _ in asked] == [False, True]


@describes_tensors
def test_the_stride_of_a_single_row_and_small_integers_dtypes_count() -> None:
    same, asked = asking()
    row = torch.zeros(1, 6).as_strided((1, 6), (77, 1))
    narrow = torch.empty(6, dtype=torch.uint4)  # type: ignore[attr-defined]
    for tensor in (torch.zeros(1, 6), row, torch.zeros(6, dtype=torch.uint8), narrow) * 2:
        same(tensor)
    assert len(asked) == 4


@pytest.mark.parametrize(
    "value",
    [
        [1],
        (1,),
        {"a": 1},
        object(),
        Size.SMALL,
        2**64,
        "x" * 1_000,
        torch.device("cpu"),
        torch.zeros(3, 3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.zeros(3).as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_with_anything_else_among_the_arguments_the_bucket_is_asked_for_each_time(runtime: Runtime, value: Any) -> None:
    same, asked = asking()
    for _ in range(40):  # more often than torch is asked about what it cannot describe
        same(1, value)
    assert len(asked) == 40
    assert samples_of(runtime, "op_calls_total") == {(NAME, "n=2", "triton"): 40}


@describes_tensors
@pytest.mark.parametrize(
    "odd", [torch.zeros(3, device="meta"), torch.zeros(3).to_sparse()], ids=lambda odd: str(odd.layout)
)
def test_tensors_that_torch_does_not_describe_leave_an_op_as_fast_for_the_others(odd: torch.Tensor) -> None:
    same, asked = asking()
    for _ in range(40):  # while a model is made on the meta device, say
        same(odd)
    for _ in range(5_000):
        same(X)
    asked.clear()
    for _ in range(100):
        same(X)
    assert not asked


@describes_tensors
def test_what_a_mode_of_torchs_says_in_the_place_of_a_dtype_is_not_remembered() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return object()

    same, asked = asking()
    small = torch.zeros(4, dtype=torch.int8)
    with Mode():
        for _ in range(5):
            same(small)
    assert len(asked) == 5


@describes_tensors
def test_supports_is_asked_in_each_call_unless_its_true_is_to_be_remembered(runtime: Runtime) -> None:
    asked: list[float] = []

    def supports(x: torch.Tensor, limit: float) -> bool:
        asked.append(limit)
        return limit < 10

    for options, times in (({}, 3), ({"remember_supports": True}, 1)):
        same, _ = asking(supports=supports, **options)
        asked.clear()
        for _ in range(3):
            assert same(X, 1.0) == ((X, 1.0), {})
        assert len(asked) == times
        for _ in range(3):
            assert same(X, 11.0) == "fallback"
        assert len(asked) == times + 3, "a refusal is not remembered"
    assert samples_of(runtime, "fallbacks_total") == {(NAME, "n=2", "unsupported_shape"): 6}


def test_supports_may_be_remembered_without_a_bucket(runtime: Runtime) -> None:
    asked: list[int] = []

    def supports(n: int) -> bool:
        asked.append(n)
        return n < 10

    @op(fallback=lambda n: -n, supports=supports, remember_supports=True, name=NAME)
    def same(n: int) -> int:
        return n

    assert [same(n) for n in (1, 1, 1, 11, 11, 2, 1)] == [1, 1, 1, -11, -11, 2, 1]
    assert asked == [1, 11, 11, 2]
    assert samples_of(runtime, "op_calls_total") == {(NAME, "all", "triton"): 5, (NAME, "all", "fallback"): 2}


@describes_tensors
def test_inside_of_a_transform_of_torch_the_bucket_is_asked_for_each_time() -> None:
    same, asked = asking()
    for _ in range(2):
        torch.vmap(lambda x: same(x)[0][0])(torch.zeros(2, 3))
        torch.func.grad(lambda x: same(x)[0][0].sum())(torch.zeros(3))
    assert len(asked) == 4


def test_for_a_call_with_very_many_arguments_the_bucket_is_asked_for_each_time(runtime: Runtime) -> None:
    same, asked = asking()
    for _ in range(2):
        assert same(*range(300))[0] == tuple(range(300))
    assert len(asked) == 2


def test_as_many_calls_are_remembered_as_there_may_be_and_then_all_are_forgotten(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tritonprobe.op"], "MAX_SHAPES", 100)
    same, asked = asking()
    for _ in range(3):
        for n in range(100):
            same(n)
    assert len(asked) == 100
    same(100)
    for n in range(99):
        same(n)
    assert len(asked) == 200
    assert samples_of(runtime, "op_calls_total") == {(NAME, "n=1", "triton"): 400}


def test_many_calls_leave_nothing_behind(runtime: Runtime) -> None:
    same, _ = asking(supports=lambda *args, **kwargs: True)
    refused, _ = asking(supports=lambda *args, **kwargs: args[0] > 1e9)
    error = ValueError("no")

    @op(fallback=lambda: None, name="raises")
    def raises() -> None:
        raise error

    text, number = "".join(["a", "text"]), 10**12
    held = [X, X.dtype, text, number, same, refused, raises, error]

    def calls(count: int) -> None:
        for _ in range(count):
            same(X, X.dtype, text, None, True, number, k=X)
            refused(1.5)
            with pytest.raises(ValueError, match="no"):
                raises()
            error.__traceback__ = None

    calls(100)
    gc.collect()
    counts = [sys.getrefcount(each) for each in held]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        calls(5_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000, "less than four bytes a round"
    assert [sys.getrefcount(each) for each in held] == counts
    assert total_of(runtime, "op_calls_total") == 3 * 5_100


def test_what_python_began_later_is_not_ended_in_the_place_of_an_op(runtime: Runtime) -> None:
    began, done = threading.Event(), threading.Event()
    watch = runtime.adapter._watch
    what = object()

    def cold() -> None:
        watch.begin_slow(what)
        began.set()
        done.wait(60)
        watch.end_slow(what)

    @op(fallback=lambda: None, name=NAME)
    def waits() -> None:
        thread.start()
        began.wait(60)

    runtime.watch()
    thread = threading.Thread(target=cold)
    waits()
    assert [None if each is None else each.what for each in watch.any] == [what]
    done.set()
    thread.join()
    assert watch.any == []


@pytest.mark.parametrize("value", [1, [1]], ids=["remembered", "asked for"])
def test_wherever_a_call_is_interrupted_the_op_has_ended(runtime: Runtime, value: object) -> None:
    same, _ = asking(supports=lambda *args, **kwargs: True)
    for _ in range(2):
        same(value)

    def is_interrupted_at(event: int) -> bool:
        """Whether the call came to its `event`-th call or return, where a signal's handler may raise."""
        left = event

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        sys.setprofile(count)
        try:
            same(value)
        except KeyboardInterrupt:
            return True
        finally:
            left = 0
            sys.setprofile(None)
        return False

    event = 1
    while is_interrupted_at(event):
        assert runtime.adapter._watch.any == []
        event += 1
    assert event > 4, "supports and the function were called, and returned"


def test_no_tensor_is_kept_alive_and_an_op_can_be_collected() -> None:
    @op(fallback=lambda x: None, bucket=lambda x: {"n": x.numel()})
    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    same(X)  # the first call of all patches Triton, and looks at the frames of all threads
    gc.collect()
    tensor = torch.zeros(3)
    alive, op_alive = weakref.ref(tensor), weakref.ref(same)
    for _ in range(3):
        same(tensor)
    del tensor
    assert alive() is None
    del same
    gc.collect()
    assert op_alive() is None


def test_threads_lose_no_count(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tritonprobe.op"], "MAX_SHAPES", 20)  # so that they forget under each other's hands
    same, _ = asking(supports=lambda *args, **kwargs: True)

    def work(first: int) -> None:
        for n in range(3_000):
            assert same(first + n % 30)[0] == (first + n % 30,)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples_of(runtime, "op_calls_total") == {(NAME, "n=1", "triton"): 12_000}


def test_threads_that_make_the_first_call_together_leave_one_op_in_c_which_counts(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60)
    made: list[Native] = []
    told: list[Native] = []
    in_the_place: list[Native] = []
    make = op_module.op_call

    class Native:
        def __init__(self, native: Any) -> None:
            self.native, self.remember = native, native.remember

        def __call__(self, *args: Any) -> Any:
            return self.native(*args)

        def counts_in(self, *args: Any) -> None:
            told.append(self)
            self.native.counts_in(*args)

        def stand_in_for(self, *_: Any) -> None:
            in_the_place.append(self)

    def made_together(*args: Any, **options: Any) -> Native:
        made.append(Native(make(*args, **options)))
        both.wait()
        return made[-1]

    same, _ = asking()
    with monkeypatch.context() as now:
        now.setattr(op_module, "op_call", made_together)
        threads = [threading.Thread(target=same, args=(1,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 2
    assert len(told) == len(in_the_place) == 1
    assert told == in_the_place


def test_each_runtime_gets_its_own_counts(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    another, disabled = Runtime(Settings()), Runtime(Settings(disabled=True))
    same, asked = asking()
    try:
        for now, times in ((runtime, 3), (another, 5), (disabled, 7), (runtime, 2)):
            monkeypatch.setattr(runtime_module, "_current", now)
            for _ in range(times):
                assert same(X) == ((X,), {})
    finally:
        monkeypatch.setattr(runtime_module, "_current", runtime)
        another.unwatch()
    assert [total_of(each, "op_calls_total") for each in (runtime, another, disabled)] == [5, 5, 0]
    assert len(asked) == (3 if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else 10), "one for each of its turns"


def test_a_forked_child_counts_its_own(runtime: Runtime) -> None:
    same, _ = asking()
    for _ in range(3):
        same(1)
    if (child := os.fork()) == 0:
        same(1)
        counted = samples_of(runtime, "op_calls_total")
        os._exit(0 if set(counted) == {(NAME, "n=1", "triton")} and not runtime.adapter._watch.any else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_arguments_may_have_any_names(runtime: Runtime) -> None:
    same, _ = asking()
    names = {"self": 1, "args": 2, "kwargs": 3, "function": 4, "where": 5}
    for _ in range(3):
        assert same(**names) == ((), names)
    assert total_of(runtime, "op_calls_total") == 3


class Layer:
    @op(fallback=lambda self, x: "fallback", bucket=lambda *args, **kwargs: {"n": len(args)}, name="layer")
    def forward(self, x: int) -> tuple[Layer, int]:
        """Goes forward."""
        return self, x


def test_an_op_is_a_function_to_everybody(runtime: Runtime) -> None:
    layer = Layer()
    for _ in range(3):
        assert layer.forward(5) == (layer, 5)
        assert Layer.forward(layer, x=5) == (layer, 5)
    assert samples_of(runtime, "op_calls_total") == {("layer", "n=2", "triton"): 3, ("layer", "n=1", "triton"): 3}
    assert Layer.forward.__doc__ == "Goes forward."
    assert pickle.loads(pickle.dumps(Layer.forward)) is Layer.forward
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        layer.forward()  # type: ignore[call-arg]


def test_since_python_312_no_frame_lies_between_the_caller_and_the_function() -> None:
    @op(fallback=lambda: "", name=NAME)
    def caller() -> str:
        return sys._getframe(1).f_code.co_name

    caller()
    here = sys._getframe().f_code.co_name
    assert caller() == (here if sys.version_info >= (3, 12) else "call")


def test_torch_compile_finds_the_function_behind_an_op_that_was_called_before(runtime: Runtime) -> None:
    @op(fallback=lambda x: x, supports=lambda x: True, bucket=lambda x: {"n": pow2(x.numel())}, name=NAME)
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    for _ in range(2):
        triple(X)
    for function in (triple, lambda x: triple(x) + 0):
        compiled: Callable[..., Any] = torch.compile(function, backend="eager", fullgraph=True)
        for _ in range(2):
            assert torch.equal(compiled(X), X * 3)
    assert total_of(runtime, "op_calls_total") == 2
    triple(X)
    assert total_of(runtime, "op_calls_total") == 3, "outside of the graph it counts again"


def test_the_device_may_change_between_two_calls(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(runtime_module, "_current", runtime)
    same, _ = asking()
    said = []
    slot = device.drivers()
    compile_only = slot._active
    for driver in (compile_only, None, compile_only, None, object(), compile_only):
        with monkeypatch.context() as now:
            now.setattr(slot, "_active", driver)
            said += [same(1), same(1)]
    assert [answer == "fallback" for answer in said] == [True, True, False, False] * 2 + [False, False, True, True]
