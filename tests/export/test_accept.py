"""Which of a server's types a client would rather have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.export.accept import preferred

TYPES = ("application/json", "text/plain")


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        (None, None),
        ("", None),
        ("*/*", None),
        ("image/png", None),
        ("text/plain", "text/plain"),
        ("TEXT/Plain ; Q = 0.3", "text/plain"),
        ("text/plain, application/json", "text/plain"),
        ("text/plain;q=0.4, application/json;q=0.5", "application/json"),
        ("text/plain;version=0.0.4;q=0.5, application/json;q=0.4", "text/plain"),
        ("text/plain;q=0, application/json;q=0.001", "application/json"),
        ("text/plain;q=0.0", None),
        ("text/plain;q=many, application/json;q=0.9", "text/plain"),
        ("text/plain;q=7, application/json", "text/plain"),
        ("text/plain;q=nan, application/json", "text/plain"),
    ],
)
def test_the_heaviest_that_is_named_first(accept: str | None, found: str | None) -> None:
    assert preferred(accept, TYPES) == found


@given(st.text())
def test_whatever_a_client_says_the_answer_is_one_of_the_servers(accept: str) -> None:
    assert preferred(accept, TYPES) in (*TYPES, None)


@given(st.permutations([("text/plain", 0.9), ("application/json", 0.5), ("*/*", 1.0)]))
def test_the_order_does_not_matter_where_weights_differ(named: list[tuple[str, float]]) -> None:
    assert preferred(", ".join(f"{kind};q={weight}" for kind, weight in named), TYPES) == "text/plain"
