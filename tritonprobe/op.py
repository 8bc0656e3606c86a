"""`op`: a public function with a Triton path and a fallback, counted by path, reason and bucket.

    @op(fallback=torch.matmul, supports=matmul_supports, bucket=lambda a, b: {"M": pow2(a.shape[0]), "K": a.shape[1]})
    def matmul(a, b): ...

The fallback answers when `supports` refuses, and when the first kernel fails with a resource or compiler error before
anything was launched; later than that, in-place work may be half done, and the kernel's own exception goes to the
caller.

A call is made in C where that can be built (`adapter/op_call.c`); `_Op.call` begins to count, and is the whole of a
call where there is no compiler.
"""

from __future__ import annotations

import functools
import os
import reprlib
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from tritonprobe.adapter.ends import Begun
from tritonprobe.ledger.schema import FALLBACKS, OP_CALLS
from tritonprobe.ledger.store import Cell
from tritonprobe.model import FALLBACK_REASONS, FallbackReason
from tritonprobe.runtime import Runtime, current
from tritonprobe.shapes.buckets import ALL, BucketMemo, UpTo, op_bucket
from tritonprobe.switch import follow

P = ParamSpec("P")
R = TypeVar("R")

Supports = Callable[..., "bool | str"]
Bucket = Callable[..., Any]
MAX_SHAPES = 8192  # distinct shapes an op remembers the bucket of; then it forgets them all and learns again


def op(
    *bare: NoReturn,
    fallback: Callable[..., Any] | None = None,
    supports: Supports | None = None,
    bucket: Bucket | None = None,
    name: str | None = None,
    remember_supports: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function an op.

    ``fallback(*args, **kwargs)`` gives the same answer more slowly. ``supports(*args, **kwargs)`` returns True, or
    False (counted as ``unsupported_shape``), or the reason as text (``unsupported_dtype``, ``unsupported_layout``);
    one that raises, or returns anything else, counts as ``supports_error``. It is asked in each call; with
    `remember_supports` it, too, may depend only on what `bucket` may depend on, and is not asked again for calls that
    are alike once it said True.

    ``bucket(*args, **kwargs)`` returns a mapping of dimensions, or text. It may depend on types, on the tensors'
    shapes, strides, dtypes and devices, and on plain values (numbers, text, None, dtypes), and on nothing else: what it
    said is remembered for calls that are alike in these. With any other object among the arguments, it is asked in each
    call.

    On the compile-only device the Triton path is taken (and compiled), its launches do nothing, and the value is the
    fallback's: no fallback is counted.
    """
    if bare or fallback is None:
        raise TypeError("an op needs a fallback: write @op(fallback=...) above the function")
    if not callable(fallback):
        raise TypeError(f"op(fallback=...) must be callable, not {type(fallback).__name__}")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _refuse_kernel(function)
        # Inside a graph of torch.compile the function stands alone: Dynamo could not trace the counting.
        torch = sys.modules.get("torch")
        is_compiling: Callable[[], bool] = bool if torch is None else torch.compiler.is_compiling

        called = name or f"{function.__module__}.{function.__qualname__}"
        made = _Op(called, function, fallback, supports, bucket, remember_supports and supports is not None)
        take: Callable[..., Any] = made.call

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_compiling():
                return function(*args, **kwargs)
            return take(*args, **kwargs)  # type: ignore[no-any-return]

        def hand_over(native: Any) -> None:
            nonlocal take
            take = native
            native.stand_in_for(call, cast(FunctionType, call).__code__.co_freevars.index("take"))

        made.hand_over = hand_over
        return call

    return decorate


def _refuse_kernel(function: object) -> None:
    """Raises TypeError if one of Triton's kernels stands where the function that launches it belongs."""
    if "triton.runtime.jit" not in sys.modules:  # nothing can be a kernel yet, and it is not ours to import Triton here
        return
    from tritonprobe.adapter.kernels import is_kernel, jit_function

    if is_kernel(function):
        name = jit_function(function).fn.__qualname__
        raise TypeError(
            f"@op(fallback=...) takes a Python function, and {name} is a Triton kernel: put it above the function that "
            f"launches {name}[grid](...), or write @probe above the kernel"
        )


_lock = threading.RLock()  # reentrant: a signal's handler, or a finalizer, may call an op inside


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)


class _Op:
    """One op: its callables, and where it counts now."""

    hand_over: Callable[[Any], None]  # takes what makes the calls from now on

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        fallback: Callable[..., Any],
        supports: Supports | None,
        bucket: Bucket | None,
        remember_supports: bool,
    ) -> None:
        self._name = name
        self._function = function
        self._fallback = fallback
        self._supports = supports
        self._bucket = bucket
        self._remember_supports = remember_supports
        self._native: Any | None = None
        self._counts: _Counts | None = None

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call, in Python. Whatever is changed here, `op_call.c` has to do as well."""
        runtime = current()
        if runtime.settings.disabled:
            return self._function(*args, **kwargs)
        counts = self._counts
        if counts is None or counts.runtime is not runtime:
            counts = self._count_in(runtime)
        if self._native is not None:
            return self._native(*args, **kwargs)
        where = counts.where(args, kwargs)
        reason = None if self._supports is None else self._refusal(counts, self._supports, args, kwargs)
        if reason is None:
            before, begun = counts.came_back(), Begun()
            try:
                counts.under_way.append(begun)
                result = self._function(*args, **kwargs)
            except Exception as error:
                reason = counts.failed(where, error, before)
                if reason is None:
                    raise
            else:
                counts.took_triton(where)
                return self._fallback(*args, **kwargs) if counts.is_compile_only() else result
            finally:
                try:  # noqa: SIM105  # an interrupt may come before Python enters `suppress`, and not before this
                    counts.under_way.remove(begun)
                except ValueError:  # one came before it had begun
                    pass
                if counts.had_error():
                    counts.forget_error()
        return counts.fall_back(where, reason, args, kwargs)

    @staticmethod
    def _refusal(
        counts: _Counts, supports: Supports, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FallbackReason | None:
        try:
            verdict = supports(*args, **kwargs)
        except Exception as error:
            return counts.supports_raised(error)
        return None if verdict is True else counts.refused(verdict)

    def _count_in(self, runtime: Runtime) -> _Counts:
        """Begins to count in `runtime`. Patches Triton unless that was done before."""
        from tritonprobe.adapter.op_call import op_call

        counts, native = _Counts(self._name, self._fallback, self._bucket, runtime), self._native
        if native is None:
            native = op_call(
                counts.ends,
                self._function,
                fallback=self._fallback,
                supports=self._supports,
                slow=self.call,
                namespace=current.__globals__,
                has_bucket=self._bucket is not None,
                remember_supports=self._remember_supports,
                limit=MAX_SHAPES,
            )
        with _lock:  # threads may make the first call together: what is in C has to count where Python does
            if self._counts is not None and self._counts.runtime is runtime:
                return self._counts
            if self._native is None and native is not None:
                self._native = native
                self.hand_over(native)
            self._counts = None  # whatever interrupts this, the two count in one runtime
            if self._native is not None:
                counts.tell(self._native)
            self._counts = counts
            return counts


def _reason(verdict: object) -> FallbackReason | None:
    """Why a call falls back, from what `supports` returned; None if it does not. Raises TypeError and ValueError."""
    if verdict is True or verdict is False:
        return None if verdict else "unsupported_shape"
    kind = type(verdict)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):  # from a comparison of numpy's numbers
        return None if verdict else "unsupported_shape"
    # Comparing anything but text may raise, or be work for the GPU.
    text = str.__str__(verdict) if issubclass(kind, str) else None
    for reason in FALLBACK_REASONS:
        if reason == text:
            return reason
    allowed = f"expected True, False, or one of {', '.join(FALLBACK_REASONS)}"
    if text is None:  # its own text is not asked for: a tensor's would read it
        raise TypeError(f"supports returned a {kind.__name__}; {allowed}")
    raise ValueError(f"supports returned {reprlib.repr(text)}; {allowed}")


# Values a bucket's callable may return that are safe to compare: a tensor's comparison is work for the GPU.
_PLAIN = frozenset({int, UpTo, str, float, bool, type(None)})
_TEXT = frozenset({str})  # of dimensions: True and 1 are equal, and name two


class _Counts:
    """One op's series in one runtime, and what it needs of that, looked up once: a call costs a few dict lookups."""

    def __init__(self, name: str, fallback: Callable[..., Any], bucket: Bucket | None, runtime: Runtime) -> None:
        from tritonprobe.adapter.device import is_compile_only
        from tritonprobe.adapter.errors import fallback_reason

        if follow(runtime):
            runtime.adapter.install_once()
        self.runtime = runtime
        launches = runtime.adapter.launches
        self.ends = launches.ends
        self.under_way, self.came_back, self.had_error = self.ends.watch.any, self.ends.came_back, self.ends.had_error
        self.failed_first, self.forget_error = launches.failed_first, launches.forget_error
        self.is_compile_only, self._fallback_reason = is_compile_only, fallback_reason
        self._name = name
        self._fallback = fallback
        self._bucket = bucket
        self._memo = BucketMemo(runtime.settings.buckets_per_kernel)
        self._names: dict[object, str] = {}
        self._cells: dict[str, Cell] = {}
        self._native: Any | None = None
        self._places = (
            self.ends.watch.any,
            self.where,
            self.forget_error,
            self.refused,
            self.supports_raised,
            self.failed,
            self.fall_back,
            self.took_triton,
        )

    def tell(self, native: Any) -> None:
        """From now on `native` makes the calls that are like those which it is told of."""
        native.counts_in(self.runtime, self._places)
        self._native = native

    def where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The bucket of a call; `all` where there is none, or it cannot be made."""
        try:
            name = ALL if self._bucket is None else self._name_of(self._bucket(*args, **kwargs))
        except Exception:
            self.runtime.fault("bucket")
            return ALL
        if self._native is not None:
            self._native.remember(self._places, name, args, kwargs)
        return name

    def _name_of(self, value: Any) -> str:
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
            if _PLAIN.issuperset(map(type, values)) and _TEXT.issuperset(map(type, value)):
                if len(self._names) >= MAX_SHAPES:
                    self._names.clear()
                self._names[key] = name
        return name

    def refused(self, verdict: object) -> FallbackReason | None:
        """Why a call falls back, from what `supports` returned; what is no reason is its fault."""
        try:
            return _reason(verdict)
        except (TypeError, ValueError) as error:
            return self.supports_raised(error)

    def supports_raised(self, error: Exception) -> FallbackReason:
        try:
            raise error
        except Exception:
            self.runtime.fault("supports")
        return "supports_error"

    def failed(self, where: str, error: Exception, before: int) -> FallbackReason | None:
        """Why the fallback answers now that the function raised; None if the error is for the caller."""
        reason = self._fallback_reason(error)
        if reason is not None and self.failed_first(error, before):
            try:
                self.runtime.op_failures.happened(self._name, reason, error)
            except Exception:  # the log is the program's own, and may raise
                self.runtime.fault("op")
            return reason
        self.took_triton(where)
        return None

    def took_triton(self, where: str) -> Cell:
        cell = self._cells.get(where)
        if cell is None:
            cell = self._cells[where] = self.runtime.ledger.cell(OP_CALLS, (self._name, where, "triton"))
        cell[0] += 1.0  # a float: an int would have to be converted each time
        return cell

    def fall_back(self, where: str, reason: FallbackReason, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.runtime.ledger.add(OP_CALLS, (self._name, where, "fallback"))
        self.runtime.ledger.add(FALLBACKS, (self._name, where, reason))
        with self.runtime.live.fallback(self._name, where, reason):
            return self._fallback(*args, **kwargs)
