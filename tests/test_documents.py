"""JSON from elsewhere: it is read, or refused with a ValueError in a few words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.damage import nested, values
from tritonprobe.documents import MAX_DEPTH, read_json


@given(values)
def test_what_is_read_can_be_walked_and_written_again(value: object) -> None:
    try:
        found = read_json(json.dumps(value))
    except ValueError:
        return
    assert json.loads(json.dumps(found)) == found


@given(st.text() | st.binary())
def test_noise_is_refused_or_read(noise: str | bytes) -> None:
    said = ""
    try:
        read_json(noise)
    except ValueError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(nested(MAX_DEPTH)), "nested too deeply"),
        ("9" * 5000, "a number of thousands of digits"),
        ("[1e999]", "a number beyond all bounds"),
        ("[NaN]", "NaN is no number that JSON knows"),
        ("-Infinity", "-Infinity is no number that JSON knows"),
        (b"\xff", "can't decode byte 0xff"),
        ("", "Expecting value"),
    ],
)
def test_what_is_wrong_is_said(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_json(text)


def test_as_deep_as_allowed_is_read() -> None:
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(ValueError, match="deeply"):
        read_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
