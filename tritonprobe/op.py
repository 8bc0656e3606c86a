"""`op`: a public function with a Triton path and a fallback, counted by path, reason and bucket.

    @op(fallback=torch.matmul, supports=matmul_supports, bucket=lambda a, b: {"M": pow2(a.shape[0]), "K": a.shape[1]})
    def matmul(a, b): ...

The fallback answers when `supports` refuses, and when the first kernel fails with a resource or compiler error before
anything was launched; later than that, in-place work may be half done, and the kernel's own exception goes to the
caller.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tritonprobe.ledger.schema import FALLBACKS, OP_CALLS
from tritonprobe.ledger.store import Cell
from tritonprobe.model import FALLBACK_REASONS, FallbackReason
from tritonprobe.runtime import Runtime, current
from tritonprobe.shapes.buckets import ALL, BucketMemo, UpTo, op_bucket
from tritonprobe.switch import follow

if TYPE_CHECKING:
    from tritonprobe.adapter.launches import Launches

P = ParamSpec("P")
R = TypeVar("R")

Supports = Callable[..., "bool | str"]
Bucket = Callable[..., Any]
MAX_SHAPES = 8192  # distinct shapes an op remembers the bucket of; then it forgets them all and learns again


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
        # Inside a graph of torch.compile the function stands alone: Dynamo could not trace the counting.
        torch = sys.modules.get("torch")
        is_compiling: Callable[[], bool] = bool if torch is None else torch.compiler.is_compiling

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_compiling() or (runtime := current()).settings.disabled:
                return function(*args, **kwargs)
            if counters.runtime is not runtime:
                counters.attach(runtime)
            where = counters.where(args, kwargs)
            refused = None if supports is None else _refusal(runtime, supports, args, kwargs)
            if refused is not None:
                counters.fell_back(where, refused)
                with runtime.live.fallback(counters.name, where, refused):
                    return fallback(*args, **kwargs)  # type: ignore[no-any-return]
            before = counters.observe()
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                reason = counters.fallback_reason(error)
                if reason is None or not counters.launches.failed_first(error, before):
                    counters.took_triton(where)
                    raise
            else:
                counters.took_triton(where)
                if counters.is_compile_only():
                    return fallback(*args, **kwargs)  # type: ignore[no-any-return]
                return result
            finally:
                if counters.observed():
                    counters.launches.forget_error()
            counters.fell_back(where, reason)
            with runtime.live.fallback(counters.name, where, reason):
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
    if verdict is True or verdict is False:
        return None if verdict else "unsupported_shape"
    kind = type(verdict)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):  # from a comparison of numpy's numbers
        return None if verdict else "unsupported_shape"
    # Comparing anything but text may raise, or be work for the GPU.
    text = str.__str__(verdict) if issubclass(type(verdict), str) else None
    return next((reason for reason in FALLBACK_REASONS if reason == text), "supports_error")


# Values a bucket's callable may return that are safe to compare: a tensor's comparison is work for the GPU.
_PLAIN = frozenset({int, UpTo, str, float, bool, type(None)})


class _Counters:
    """One op's series, and what it needs of the runtime, looked up once: a call then costs a few dict lookups."""

    runtime: Runtime | None = None
    launches: Launches
    observe: Callable[[], int]
    observed: Callable[[], bool]
    is_compile_only: Callable[[], bool]
    fallback_reason: Callable[[BaseException], FallbackReason | None]

    def __init__(self, name: str, bucket: Bucket | None) -> None:
        self.name = name
        self._bucket = bucket

    def attach(self, runtime: Runtime) -> None:
        """Begins to count in `runtime`. Patches Triton unless that was done before."""
        from tritonprobe.adapter.device import is_compile_only
        from tritonprobe.adapter.errors import fallback_reason

        if follow(runtime):
            runtime.adapter.install_once()
        self.launches = runtime.adapter.launches
        self.observe, self.observed = self.launches.ends.observe, self.launches.ends.observed
        self.is_compile_only, self.fallback_reason = is_compile_only, fallback_reason
        self._memo = BucketMemo(runtime.settings.buckets_per_kernel)
        self._names: dict[object, str] = {}
        self._cells: dict[str, Cell] = {}
        self._ledger = runtime.ledger
        self._fault = runtime.fault
        self.runtime = runtime

    def where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The bucket of a call; `all` where there is none, or it cannot be made."""
        if self._bucket is None:
            return ALL
        try:
            value = self._bucket(*args, **kwargs)
            if type(value) is not dict:
                return self._memo.admit(op_bucket(value))
            values = tuple(value.values())
            key = (*map(type, values), *value, *values)  # the types tell M=1024 from M<=1024
            try:
                name = self._names.get(key)  # types come first, so no value of an odd type is compared with ours
            except Exception:  # one without a hash is no plain one
                name = None
            if name is None:
                name = self._memo.admit(op_bucket(value))
                if _PLAIN.issuperset(map(type, values)):
                    if len(self._names) >= MAX_SHAPES:
                        self._names.clear()
                    self._names[key] = name
            return name
        except Exception:
            self._fault("bucket")
            return ALL

    def took_triton(self, bucket: str) -> None:
        cell = self._cells.get(bucket)
        if cell is None:
            cell = self._cells[bucket] = self._ledger.cell(OP_CALLS, (self.name, bucket, "triton"))
        cell[0] += 1.0  # a float: an int would have to be converted each time

    def fell_back(self, bucket: str, reason: FallbackReason) -> None:
        self._ledger.add(OP_CALLS, (self.name, bucket, "fallback"))
        self._ledger.add(FALLBACKS, (self.name, bucket, reason))
