"""A story travels as JSON and comes back equal; anything else is refused with the name of the field."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.story.stories import History, busy
from tritonprobe.story import from_json, tell, to_json


@pytest.mark.parametrize("history", [busy(), History()], ids=["busy", "empty"])
def test_a_story_survives_the_trip_through_text(history: History) -> None:
    story = tell(history)
    assert from_json(json.loads(json.dumps(to_json(story)))) == story


def test_whole_numbers_are_read_where_seconds_are_expected() -> None:
    data = to_json(tell(busy()))
    data["cold_seconds"] = 3
    assert from_json(data).cold_seconds == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=99), "report: format 99 cannot be read; this version reads format 1"),
        (lambda d: d.update(device=1), "report.device: expected str, found 1"),
        (lambda d: d.update(cold_calls=1.5), "report.cold_calls: expected int, found 1.5"),
        (lambda d: d.update(cold_calls=True), "report.cold_calls: expected int, found True"),
        (lambda d: d["dearest"][1].update(seconds="x"), r"report.dearest\[1\].seconds: expected float, found 'x'"),
        (lambda d: d.update(cold_seconds=float("nan")), "report.cold_seconds: expected float, found nan"),
        (lambda d: d["ttft"].pop("p99"), "report.ttft: missing or unknown: p99"),
        (lambda d: d.update(pairs={}), "report.pairs: expected a list"),
        (lambda d: d.update(surprise=1), "report: missing or unknown: surprise"),
        (lambda d: d["ops"][0].update(reasons=[["one"]]), r"report.ops\[0\].reasons\[0\]: expected 2 values, found 1"),
    ],
)
def test_a_wrong_field_is_named(change, message: str) -> None:
    data = json.loads(json.dumps(to_json(tell(busy()))))
    change(data)
    with pytest.raises(ValueError, match=message):
        from_json(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(data=anything)
def test_anything_else_is_refused_with_one_sentence(data: object) -> None:
    with pytest.raises(ValueError, match=r"^report: .*"):
        from_json(data)


@given(field=st.sampled_from(sorted(to_json(tell(busy())))), value=anything)
def test_a_damaged_field_is_refused_or_read_as_it_is(field: str, value: object) -> None:
    data = {**copy.deepcopy(to_json(tell(busy()))), field: value}
    try:
        story = from_json(data)
    except ValueError:
        with pytest.raises(ValueError, match=r"^report"):
            from_json(data)
    else:
        assert json.loads(json.dumps(to_json(story)))[field] == value
