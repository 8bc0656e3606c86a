"""What Triton made of a call's arguments: `_do_compile`'s inputs as a `Variant` of plain text.

Touches Triton's path helpers and its attribute names (``tt.divisibility``, ``tt.pointer_range``). Never reads a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonprobe.model import ArgClass, Variant

MAX_TEXT = 200
# Options that Triton fills in itself and that say nothing about a call.
_SILENT_OPTIONS = frozenset(
    {"extern_libs", "arch", "backend_name", "debug", "instrumentation_mode", "sanitize_overflow"}
)


def variant_of(
    kernel: str,
    jit: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    options: Any,
) -> Variant:
    """The variant of one call.

    `signature` maps names to types, `constexprs` and `attrs` are keyed by argument paths.
    """
    from triton._utils import find_paths_if, get_iterable_path

    names, types = list(signature), list(signature.values())
    args = []
    for path in find_paths_if(types, lambda _, __: True):
        name = names[path[0]] + "".join(f"[{i}]" for i in path[1:])
        type_ = get_iterable_path(types, path)
        if type_ == "constexpr":
            args.append((name, _constant(jit.params[path[0]].is_constexpr, len(path) > 1, constexprs.get(path))))
        else:
            args.append((name, ArgClass(str(type_), _specialisation(str(type_), jit.params[path[0]], attrs.get(path)))))
    shown = tuple((k, text_of(v)) for k, v in sorted(vars(options).items()) if k not in _SILENT_OPTIONS)
    return Variant(kernel, tuple(args), shown)


def text_of(value: Any) -> str:
    """A constant as short text.

    Objects other than plain values give their name or type: a tensor's text would read it.
    """
    if isinstance(value, (bool, int, float, str, type(None))):
        text = repr(value)
    elif isinstance(value, (tuple, list)):
        text = f"({', '.join(text_of(v) for v in value[:32])})"
    elif hasattr(value, "value") and type(value).__name__ == "constexpr":
        return text_of(value.value)
    elif type(value).__name__ == "dtype":
        text = str(value)
    else:
        name = getattr(value, "__name__", None)
        text = name if isinstance(name, str) and name else type(value).__name__
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _constant(declared: bool, nested: bool, value: Any) -> ArgClass:
    """Triton makes constants of None and of the integer 1; they are classes of an argument, not the author's own."""
    if declared or (nested and value is not None and value != 1):
        return ArgClass("constexpr", text_of(value))
    if value is None:
        return ArgClass("", "None")
    if type(value) is int and value == 1:
        return ArgClass("", "==1")
    return ArgClass("constexpr", text_of(value))


def _specialisation(type_: str, param: Any, attrs: Any) -> str:
    if type_.startswith(("fp", "bf", "u1")):
        return "other"  # floats and bools are classed by type alone
    if attrs is None and param.annotation_type and not type_.startswith("*") and not param.do_not_specialize:
        # An integer 1 whose type is annotated stays an argument, and yet is a class: Triton compiles the kernel twice.
        return "==1"
    aligned = any("divisibility" in str(attribute[0]) for attribute in attrs or ())
    small = " <=2GiB" if any("pointer_range" in str(attribute[0]) for attribute in attrs or ()) else ""
    if aligned:
        return f"%16{small}"
    if param.do_not_specialize or param.do_not_specialize_on_alignment:
        return f"unspecialised{small}"
    return f"{'unaligned' if type_.startswith('*') else 'other'}{small}"
