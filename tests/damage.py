"""Documents as nobody writes them: any value in any place of a good one. Made by Hypothesis."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"list": [found]}
    return found


ODD: tuple[Any, ...] = (
    *(None, True, -1, 1 << 63, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "\ud800", "a\x1b[31m\nb\0", "[/red]", "../../x", "x" * 10_000),
    *([], [1, 2], {}, {"": {}}, {"list": [1]}, {"tuple": [{"list": []}]}, {"float": "0x1p99999"}, {"tensor": 5}),
    *(nested(30), nested(49), nested(400)),
)
"""Values that ended some reader."""

values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def damaged(document: Any) -> st.SearchStrategy[Any]:
    """`document` with another value, or another name, in one of its places."""
    return st.tuples(st.sampled_from(list(_places(document))), st.booleans(), values).map(
        lambda drawn: _put(copy.deepcopy(document), *drawn)
    )


def _places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in inside:
        yield (*above, name)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*above, name))


def _put(document: Any, place: tuple[Any, ...], renames: bool, value: Any) -> Any:
    *above, last = place
    at = document
    for name in above:
        at = at[name]
    if renames and isinstance(at, dict) and isinstance(value, str):
        at[value] = at.pop(last)
    else:
        at[last] = value
    return document
