"""A story as plain JSON data, and back. Reading checks every field and names the one that is wrong."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from tritonprobe.story.view import Story

FORMAT = 1
"""The version of the JSON form; a reader refuses another."""


def to_json(story: Story) -> dict[str, Any]:
    """Dicts, lists, strings and numbers, ready for `json.dumps`."""
    return {"format": FORMAT, **asdict(story)}


def from_json(data: object) -> Story:
    """The inverse of `to_json`, before or after a trip through text. Raises ValueError naming what cannot be read."""
    if not isinstance(data, dict):
        raise ValueError(f"report: expected an object, found {type(data).__name__}")
    if data.get("format") != FORMAT:
        raise ValueError(f"report: format {data.get('format')!r} cannot be read; this version reads format {FORMAT}")
    return cast(Story, _read(Story, {key: value for key, value in data.items() if key != "format"}, "report"))


def _read(kind: Any, data: object, where: str) -> object:
    """`data` as a value of the type `kind`: a dataclass, a tuple, an optional or a scalar."""
    if get_origin(kind) is UnionType:
        (inner,) = (k for k in get_args(kind) if k is not NoneType)
        return None if data is None else _read(inner, data, where)
    if get_origin(kind) is tuple:
        return _read_tuple(get_args(kind), data, where)
    if is_dataclass(kind):
        return _read_record(kind, data, where)
    if kind is float and type(data) in (int, float) and math.isfinite(cast(float, data)):
        return float(cast(float, data))
    if kind in (int, str) and type(data) is kind:  # a bool is an int to isinstance, and no number to a reader
        return data
    raise ValueError(f"{where}: expected {kind.__name__}, found {data!r}")


def _read_tuple(kinds: tuple[Any, ...], data: object, where: str) -> object:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"{where}: expected a list, found {data!r}")
    if kinds[-1] is ...:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise ValueError(f"{where}: expected {len(kinds)} values, found {len(data)}")
    return tuple(_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data, strict=True)))


def _read_record(kind: Any, data: object, where: str) -> object:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, found {data!r}")
    names = {f.name for f in fields(kind)}
    if data.keys() != names:
        wrong = ", ".join(sorted(map(str, data.keys() ^ names)))
        raise ValueError(f"{where}: missing or unknown: {wrong}")
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in data})
