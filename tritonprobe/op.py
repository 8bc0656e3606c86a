"""`op`: a public function with a Triton path and a fallback, counted by path, reason and bucket.

    @op(fallback=torch.matmul, supports=matmul_supports, bucket=lambda a, b: {"M": pow2(a.shape[0]), "K": a.shape[1]})
    def matmul(a, b): ...

The fallback answers when `supports` refuses, and when the first kernel fails with a resource or compiler error before
anything was launched; later than that, in-place work may be half done, and the kernel's own exception goes to the
caller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tritonprobe.ledger.schema import FALLBACKS, OP_CALLS
from tritonprobe.ledger.store import Cell
from tritonprobe.model import FALLBACK_REASONS, FallbackReason
from tritonprobe.runtime import Runtime, current
from tritonprobe.shapes.buckets import ALL, BucketMemo, op_bucket

P = ParamSpec("P")
R = TypeVar("R")

Supports = Callable[..., "bool | str"]
Bucket = Callable[..., Any]


def op(
    *,
    fallback: Callable[..., Any],
    supports: Supports | None = None,
    bucket: Bucket | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function an op.

    ``fallback(*args, **kwargs)`` gives the same answer more slowly. ``supports(*args, **kwargs)`` returns True, or
    False (counted as ``unsupported_shape``), or the reason as text (``unsupported_dtype``, ``unsupported_layout``);
    one that raises counts as ``supports_error``. ``bucket(*args, **kwargs)`` returns a mapping of dimensions, or
    text.

    On the compile-only device the Triton path is taken (and compiled), its launches do nothing, and the value is the
    fallback's: no fallback is counted.
    """
    if not callable(fallback):
        raise TypeError(f"op(fallback=...) must be callable, not {type(fallback).__name__}")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        counters = _Counters(name or f"{function.__module__}.{function.__qualname__}", bucket)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            runtime = current()
            if runtime.settings.disabled:
                return function(*args, **kwargs)
            where = counters.bucket(runtime, args, kwargs)
            refused = _refusal(runtime, supports, args, kwargs)
            if refused is not None:
                counters.fell_back(runtime, where, refused)
                return fallback(*args, **kwargs)  # type: ignore[no-any-return]
            from tritonprobe.adapter.device import is_compile_only
            from tritonprobe.adapter.errors import fallback_reason

            runtime.adapter.install_once()
            with runtime.adapter.observed() as launched:
                try:
                    result = function(*args, **kwargs)
                except Exception as error:
                    reason = fallback_reason(error)
                    if reason is None or error is not launched.error or launched.launches > 0:
                        counters.took_triton(runtime, where)
                        raise
                else:
                    counters.took_triton(runtime, where)
                    if is_compile_only():
                        return fallback(*args, **kwargs)  # type: ignore[no-any-return]
                    return result
            counters.fell_back(runtime, where, reason)
            return fallback(*args, **kwargs)  # type: ignore[no-any-return]

        return call

    return decorate


def _refusal(
    runtime: Runtime, supports: Supports | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FallbackReason | None:
    if supports is None:
        return None
    try:
        verdict = supports(*args, **kwargs)
    except Exception:
        runtime.fault("supports")
        return "supports_error"
    if verdict is True:
        return None
    for reason in FALLBACK_REASONS:
        if verdict == reason:
            return reason
    return "unsupported_shape" if verdict is False else "supports_error"


class _Counters:
    """One op's series. Cells are kept by bucket, so that a call costs a dict lookup."""

    def __init__(self, name: str, bucket: Bucket | None) -> None:
        self._name = name
        self._bucket = bucket
        self._runtime: Runtime | None = None
        self._memo: BucketMemo | None = None
        self._cells: dict[str, Cell] = {}

    def bucket(self, runtime: Runtime, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._runtime is not runtime or self._memo is None:
            self._runtime, self._memo, self._cells = runtime, BucketMemo(runtime.settings.buckets_per_kernel), {}
        if self._bucket is None:
            return ALL
        try:
            return self._memo.admit(op_bucket(self._bucket(*args, **kwargs)))
        except Exception:
            runtime.fault("bucket")
            return ALL

    def took_triton(self, runtime: Runtime, bucket: str) -> None:
        cell = self._cells.get(bucket)
        if cell is None:
            cell = self._cells[bucket] = runtime.ledger.cell(OP_CALLS, (self._name, bucket, "triton"))
        cell[0] += 1

    def fell_back(self, runtime: Runtime, bucket: str, reason: FallbackReason) -> None:
        runtime.ledger.add(OP_CALLS, (self._name, bucket, "fallback"))
        runtime.ledger.add(FALLBACKS, (self._name, bucket, reason))
