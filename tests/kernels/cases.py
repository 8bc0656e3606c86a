"""The calls that every op is checked with, by whatever runs the kernels: Triton's interpreter, or a GPU.

Inputs are made fresh for each call from a seed and laid out as a test asks. What surrounds an input in memory, and a
cache's rows beyond a sequence's length, is NaN: a kernel that reads a wrong stride or past a tail shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

import tritonprobe_kernels as tk

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Layout = Literal["contiguous", "padded_rows", "unaligned_strided", "transposed"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

# For the norm of the difference over the norm of the reference: a few rounding steps of the dtype. For float32 that
# leaves room for three TF32 products, not for one (5e-4); for bfloat16, for the interpreter, which cuts off.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(slots=True)
class Inputs:
    """Makes the inputs of one call."""

    dtype: torch.dtype
    layout: Layout
    device: str
    generator: torch.Generator

    def floats(self, *shape: int, spread: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=self.generator) * spread
        return lay_out(values.to(self.device, self.dtype), self.layout)

    def indices(self, values: list[int]) -> torch.Tensor:
        """int32 where data is aligned, else an int64 view with a stride: kernels take both."""
        if self.layout in ("contiguous", "padded_rows"):
            return torch.tensor(values, dtype=torch.int32, device=self.device)
        spaced = [number for value in values for number in (-(2**40), value)]
        return torch.tensor(spaced, dtype=torch.int64, device=self.device)[1::2]

    def caches(self, lengths: dict[int, int], shape: tuple[int, int, int, int]) -> list[torch.Tensor]:
        """Keys and values ``[slots, max_len, kv_heads, head_dim]``, NaN where no slot of `lengths` has a token."""
        pair = [self.floats(*shape), self.floats(*shape)]
        for cache in pair:
            for slot in range(shape[0]):
                cache[slot, lengths.get(slot, 0) :] = float("nan")
        return pair


def lay_out(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A view of `values`' shape and contents with the strides of `layout`, inside memory full of NaN."""
    shape = values.shape
    if layout == "contiguous":
        memory = values.new_full((values.numel() + 128,), float("nan"))
        view = memory[64 : 64 + values.numel()].view(shape)
    elif layout == "padded_rows":
        view = values.new_full((*shape[:-1], shape[-1] + 16), float("nan"))[..., : shape[-1]]
    elif layout == "unaligned_strided":
        view = values.new_full((*shape[:-1], 2 * shape[-1] + 1), float("nan"))[..., 1::2]
    else:
        view = values.new_full((*reversed(shape),), float("nan")).permute(*reversed(range(len(shape))))
    return view.copy_(values)


Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to call an op; ``make`` gives its arguments."""

    name: str
    op: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    make: Callable[[Inputs], Call]

    def __str__(self) -> str:
        return self.name


def _add(*shape: int) -> Callable[[Inputs], Call]:
    return lambda i: ((i.floats(*shape), i.floats(*shape)), {})


def _softmax(*shape: int) -> Callable[[Inputs], Call]:
    return lambda i: ((i.floats(*shape, spread=5.0),), {})


def _rmsnorm(*shape: int, eps: float = 1e-6) -> Callable[[Inputs], Call]:
    return lambda i: ((i.floats(*shape), i.floats(shape[-1]), eps), {})


def _swiglu(*shape: int, fused: bool) -> Callable[[Inputs], Call]:
    if fused:
        return lambda i: ((i.floats(*shape[:-1], 2 * shape[-1]),), {})
    return lambda i: ((i.floats(*shape), i.floats(*shape)), {})


def _rope(tokens: int, heads: int, head_dim: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        cos, sin = tk.rope_tables(1_000, head_dim, device=inputs.device)
        tables = (lay_out(cos, inputs.layout), lay_out(sin, inputs.layout))
        positions = torch.randint(0, 1_000, (tokens,), generator=inputs.generator).tolist()
        return (inputs.floats(tokens, heads, head_dim), inputs.indices(positions), *tables), {}

    return make


def _matmul(m: int, n: int, k: int, *, bias: bool = False, **options: Any) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        kwargs = {**options, "bias": inputs.floats(n)} if bias else options
        return (inputs.floats(m, k), inputs.floats(k, n)), kwargs

    return make


def _prefill(lengths: list[int], heads: int, kv_heads: int, dim: int, **options: Any) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        q, k, v = (inputs.floats(bounds[-1], h, dim) for h in (heads, kv_heads, kv_heads))
        return (q, k, v, inputs.indices(bounds), max(lengths)), options

    return make


def _decode(
    slots: list[int], lengths: list[int], heads: int, kv_heads: int, dim: int, **options: Any
) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        shape = (max(slots) + 2, max(lengths) + 3, kv_heads, dim)
        k, v = inputs.caches(dict(zip(slots, lengths, strict=True)), shape)
        q = inputs.floats(len(slots), heads, dim)
        return (q, k, v, inputs.indices(slots), inputs.indices(lengths)), options

    return make


def _case(name: str, what: str, make: Callable[[Inputs], Call]) -> Case:
    return Case(f"{name}-{what}", getattr(tk, name), getattr(tk, f"{name}_reference"), make)


# One call of each op with tails everywhere: no size is a multiple of a block. Run for every dtype and layout.
CORE = [
    _case("add", "3x5x101", _add(3, 5, 101)),
    _case("softmax", "7x77", _softmax(7, 77)),
    _case("rmsnorm", "7x300", _rmsnorm(7, 300)),
    _case("swiglu", "fused-7x75", _swiglu(7, 75, fused=True)),
    _case("swiglu", "pair-7x75", _swiglu(7, 75, fused=False)),
    _case("rope", "5x3x24", _rope(5, 3, 24)),
    _case("matmul", "33x90x70-bias-gelu", _matmul(33, 90, 70, bias=True, activation="gelu", scale=0.25)),
    _case("attention_prefill", "lengths-5-0-70-1", _prefill([5, 0, 70, 1], heads=4, kv_heads=2, dim=32)),
    _case("attention_decode", "lengths-1-150-0", _decode([3, 1, 4], [1, 150, 0], heads=6, kv_heads=2, dim=32)),
]

# The other shapes and options, each in one layout.
MORE = [
    _case("add", "one", _add(1)),
    _case("add", "4096", _add(4_096)),
    _case("softmax", "vector-1000", _softmax(1_000)),
    _case("softmax", "2x3x1", _softmax(2, 3, 1)),
    _case("softmax", "2x5000", _softmax(2, 5_000)),
    _case("rmsnorm", "2x3x64-eps", _rmsnorm(2, 3, 64, eps=0.5)),
    _case("rmsnorm", "1x8200", _rmsnorm(1, 8_200)),
    _case("swiglu", "fused-2x2x2600", _swiglu(2, 2, 2_600, fused=True)),
    _case("swiglu", "pair-1x1", _swiglu(1, 1, fused=False)),
    _case("rope", "1x1x2", _rope(1, 1, 2)),
    _case("rope", "3x40x128", _rope(3, 40, 128)),
    _case("matmul", "1x64x128", _matmul(1, 64, 128)),
    _case("matmul", "130x130x64-silu", _matmul(130, 130, 64, activation="silu", scale=0.1)),
    _case("matmul", "64x64x33-bias-relu", _matmul(64, 64, 33, bias=True, activation="relu")),
    _case("matmul", "20x40x60-to-float32", _matmul(20, 40, 60, out_dtype=torch.float32)),
    _case("matmul", "5x7x1", _matmul(5, 7, 1)),
    # More than GROUP_M tile rows of the smallest tile, with a last band that is lower than the others.
    _case("matmul", "1100x70x16", _matmul(1_100, 70, 16)),
    _case("attention_prefill", "one-token", _prefill([1], heads=1, kv_heads=1, dim=16)),
    _case("attention_prefill", "no-groups-130", _prefill([130], heads=2, kv_heads=2, dim=64, scale=0.3)),
    _case("attention_prefill", "dim-256", _prefill([3, 40], heads=2, kv_heads=1, dim=256)),
    _case("attention_decode", "no-groups", _decode([0], [128], heads=2, kv_heads=2, dim=64, scale=0.3)),
    _case("attention_decode", "group-of-20", _decode([0, 2], [17, 64], heads=20, kv_heads=1, dim=16)),
    _case("attention_decode", "dim-256", _decode([1, 0], [40, 33], heads=4, kv_heads=2, dim=256)),
]


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Inside the block `torch.empty` comes full of NaN, so that an element no kernel wrote is seen.

    Torch does that itself: see `torch.utils.deterministic.fill_uninitialized_memory`, which is on unless switched off.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(case: Case, dtype: torch.dtype, layout: Layout, device: str = "cpu", seed: int = 0) -> None:
    """Runs the op and its reference on the same inputs; asserts that they agree and that the inputs are unharmed."""
    inputs = Inputs(dtype, layout, device, torch.Generator().manual_seed(seed))
    args, kwargs = case.make(inputs)
    before = [arg.clone() for arg in args if isinstance(arg, torch.Tensor)]
    expected = case.reference(*args, **kwargs)
    with poisoned_outputs():
        out = case.op(*args, **kwargs)

    assert (out.shape, out.dtype, out.device) == (expected.shape, expected.dtype, expected.device)
    assert out.is_contiguous()
    assert torch.isfinite(out).all(), f"{(~torch.isfinite(out)).sum()} of {out.numel()} elements are not finite"
    error = relative_error(out, expected)
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"
    after = [arg for arg in args if isinstance(arg, torch.Tensor)]
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(after, before, strict=True))


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what was expected."""
    difference = (out.double() - expected.double()).norm()
    return float(difference / expected.double().norm())
