"""Compile inputs as JSON and back: what `_do_compile` was given, exactly, and nothing that could run on reading it.

Knows Triton's types for constants. Functions, enumerations and named tuples are written as names; `decode` asks a
resolver for them, so that whoever reads decides which modules may be imported.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

from tritonprobe.adapter.homes import home_of
from tritonprobe.adapter.kernels import jit_function

MAX_TEXT, MAX_BITS, MAX_DEPTH = 4096, 4096, 30
"""Of a text, a number and nested values; what is beyond them is no compile input that anybody replays, or reads."""

Resolve = Callable[[str, str], Any]
"""Module and qualified name -> the object. Raises LookupError with a sentence."""


class EncodingError(TypeError):
    """A value that the census has no word for."""


def encode(value: Any, room: int = MAX_DEPTH) -> Any:
    """Raises EncodingError."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        if value.bit_length() > MAX_BITS:
            raise EncodingError("a number of thousands of digits")
        return value
    if type(value) is str:
        if len(value) > MAX_TEXT:
            raise EncodingError("a text of thousands of characters")
        return value
    if not room:
        raise EncodingError("values nested too deeply")
    return _spelt_out(value, room - 1)


def _spelt_out(value: Any, room: int) -> dict[str, Any]:
    from triton import language as tl
    from triton.runtime.jit import JITCallable

    found: dict[str, Any]
    if type(value) is float:
        found = {"float": value.hex() if math.isfinite(value) else repr(value)}
    elif isinstance(value, tl.dtype):
        found = {"dtype": str(value)}
    elif isinstance(value, enum.Enum):
        found = {"enum": [home_of(type(value)), type(value).__qualname__, value.name]}
    elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        found = {"torch": str(value)}
    elif isinstance(value, JITCallable):
        found = {"jit": [home_of(value.fn), value.fn.__qualname__]}
    elif isinstance(value, tl.constexpr):
        found = {"constexpr": encode(value.value, room)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = type(value)
        found = {"namedtuple": [home_of(kind), kind.__qualname__, [encode(item, room) for item in value]]}
    elif type(value) in (tuple, list):
        found = {type(value).__name__: [encode(item, room) for item in value]}
    else:
        raise EncodingError(f"a {type(value).__module__}.{type(value).__qualname__}")
    return found


def decode(value: Any, resolve: Resolve) -> Any:
    """Raises EncodingError for what `encode` never wrote, and what `resolve` raises."""
    if value is None or isinstance(value, (int, bool, str)):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise EncodingError(f"cannot read {str(value)[:60]}")
    ((word, content),) = value.items()
    try:
        return _WORDS[word](content, resolve)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise EncodingError(f"cannot read {str(value)[:60]}: {error}") from None


def _float(content: Any, _: Resolve) -> float:
    return float.fromhex(content) if content not in ("nan", "inf", "-inf") else float(content)


def _dtype(content: Any, _: Resolve) -> Any:
    from triton import language as tl

    if content.startswith(("pointer<", "const")):
        raise ValueError("a pointer's type")
    return tl.dtype(content)


def _constexpr(content: Any, resolve: Resolve) -> Any:
    from triton import language as tl

    return tl.constexpr(decode(content, resolve))


def _tuple(content: Any, resolve: Resolve) -> tuple[Any, ...]:
    return tuple(decode(item, resolve) for item in content)


def _list(content: Any, resolve: Resolve) -> list[Any]:
    return [decode(item, resolve) for item in content]


def _jit(content: Any, resolve: Resolve) -> Any:
    found = resolve(content[0], content[1])
    return jit_function(found) or found


def _enum(content: Any, resolve: Resolve) -> Any:
    kind = resolve(content[0], content[1])
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise TypeError(f"{content[1]} is no enumeration")
    return kind[content[2]]


def _torch(content: Any, _: Resolve) -> Any:
    import torch

    found = getattr(torch, content.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError("no dtype")
    return found


def _namedtuple(content: Any, resolve: Resolve) -> Any:
    kind = resolve(content[0], content[1])
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise TypeError(f"{content[1]} is no named tuple")
    return kind(*_tuple(content[2], resolve))


_WORDS: dict[str, Callable[[Any, Resolve], Any]] = {
    "float": _float,
    "dtype": _dtype,
    "constexpr": _constexpr,
    "tuple": _tuple,
    "list": _list,
    "jit": _jit,
    "enum": _enum,
    "torch": _torch,
    "namedtuple": _namedtuple,
}


def encode_inputs(
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    options: Any,
    defaults: Any,
) -> dict[str, Any]:
    """`_do_compile`'s inputs; of the options those that differ from `defaults`, the target's own.

    All options would hold this installation's paths. Raises EncodingError.
    """
    base = vars(defaults)
    return {
        "signature": [[name, encode(kind)] for name, kind in signature.items()],
        "constexprs": [[list(path), encode(value)] for path, value in constexprs.items()],
        "attrs": [[list(path), encode(value)] for path, value in attrs.items()],
        "options": {
            name: encode(value)
            for name, value in vars(options).items()
            # As text: 1 equals True, and Triton's hash tells them apart.
            if name != "extern_libs" and (name not in base or repr(value) != repr(base[name]))
        },
    }


def decode_inputs(
    inputs: Any, resolve: Resolve
) -> tuple[dict[str, Any], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any], dict[str, Any]]:
    """Signature, constants, attributes, and the options that are not the target's own. Raises EncodingError."""
    try:
        return (
            {str(name): decode(kind, resolve) for name, kind in inputs["signature"]},
            {tuple(map(int, path)): decode(value, resolve) for path, value in inputs["constexprs"]},
            {tuple(map(int, path)): decode(value, resolve) for path, value in inputs["attrs"]},
            {str(name): decode(value, resolve) for name, value in inputs["options"].items()},
        )
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, EncodingError):
            raise
        raise EncodingError(f"inputs that cannot be read: {error}") from None


def describe_call(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as far as prewarming needs them: numbers as they are, tensors by type, shape and strides.

    A tensor is never read.
    """
    return {name: _described(value) for name, value in arguments.items()}


def _described(value: Any) -> Any:
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        try:
            shape, strides = [int(n) for n in value.shape], [int(n) for n in value.stride()]
        except Exception:
            return {"other": type(value).__name__}
        tensor = {"dtype": str(value.dtype), "shape": shape, "strides": strides, "aligned": value.data_ptr() % 16 == 0}
        return {"tensor": tensor}
    try:
        return encode(value)
    except EncodingError:
        return {"other": type(value).__name__}
