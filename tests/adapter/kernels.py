"""Small kernels with one feature of Triton's interface each. `@triton.jit` wants them in a file."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def scale_kernel(x, factor, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * factor, mask=offsets < n)


@triton.jit
def optional_kernel(x, bias, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    if bias is not None:
        value += tl.load(bias + offsets)
    tl.store(out + offsets, value)


@triton.jit
def optional_int_kernel(x, n, k, BLOCK: tl.constexpr):
    value = n
    if k is not None:
        value += k
    tl.store(x + tl.arange(0, BLOCK), value)


@triton.jit
def tuple_kernel(x, shape, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), shape[0] + shape[1] + n)


@triton.jit
def defaults_kernel(x, out, n=7, BLOCK: tl.constexpr = 64):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + n)


@triton.jit
def annotated_kernel(x, n: tl.int32, factor: "fp32", BLOCK: tl.constexpr):  # noqa: F821, UP037  # Triton's own spelling
    tl.store(x + tl.arange(0, BLOCK), n * factor)


@triton.jit
def _double(value):
    return value * 2


@triton.jit
def calling_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), _double(n))


@triton.jit
def fixed_kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


@triton.jit
def strict_kernel(x, n, BLOCK: tl.constexpr, WANTED: tl.constexpr):
    tl.static_assert(WANTED < 100, "too many wanted")
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.jit
def asserting_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 16, "no block is that small")
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.jit
def broken_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), undefined_name + n)  # noqa: F821  # does not compile, on purpose


@triton.jit
def dot_kernel(a, b, c, n, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    acc = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for k in range(0, n, SIZE):
        acc = tl.dot(tl.load(a + rows * n + columns + k), tl.load(b + (rows + k) * n + columns), acc)
    tl.store(c + rows * n + columns, acc)


@triton.jit(do_not_specialize=["n"])
def typed_kernel(x, n: tl.int32, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)


@triton.jit
def annotated_integers_kernel(x, n: tl.int32, m: tl.int64, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n + m)
