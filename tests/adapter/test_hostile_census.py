"""A census that says anything: it is refused when it is read, or each variant of it is replayed or skipped."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh
from tests.damage import damaged
from tritonprobe.adapter.encoding import MAX_DEPTH, EncodingError, encode
from tritonprobe.documents import read_json
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census, CensusError

X = torch.empty(64)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_any_place_is_refused_replayed_or_skipped(
    instrumented: Runtime, recorded: tuple[Any, Any], data: st.DataObject
) -> None:
    tuner, document = recorded
    text = json.dumps(data.draw(damaged(document)))
    try:
        census = Census.parse(text)
    except CensusError:
        census = Census()
    tuner.cache.clear()
    result = tritonprobe.prewarm(census)
    skipped = [each for each in result.skipped if not each.winner]
    assert result.planned == result.replayed + result.there_before + len(skipped)
    assert Census.parse(instrumented.census().text())


@pytest.fixture
def recorded(instrumented: Runtime) -> tuple[Any, Any]:
    """A tuner, and what is known of it and its kernel."""
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    tuner = triton.autotune(configs=configs, key=["n"])(fresh(kernels.add_kernel))
    tuner[(1,)](X, X, X, 64)
    document = json.loads(instrumented.census().text())
    assert (len(document["entries"]), len(document["tunings"])) == (2, 1)
    for tuning in document["tunings"]:
        tuning["measured"] = True
    return tuner, document


@pytest.mark.parametrize(
    ("key", "says", "shown"),
    [
        ({"list": [1]}, "unhashable type: 'list'", "(1)"),
        ({"tuple": [{"list": []}]}, "unhashable", "(())"),
        ({"x": 1}, "cannot read", '{"x":1}'),
    ],
)
def test_a_key_that_no_tuner_has_is_skipped(
    instrumented: Runtime, recorded: tuple[Any, Any], key: Any, says: str, shown: str
) -> None:
    _, document = recorded
    document["tunings"][0]["key"] = key
    (skipped,) = tritonprobe.prewarm(Census.parse(json.dumps(document))).skipped
    assert says in skipped.because
    assert skipped.key == shown


def test_what_is_written_is_no_deeper_or_longer_than_what_is_read() -> None:
    value: Any = ()
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    read_json(json.dumps({"entries": [{"inputs": {"constexprs": [[0, encode(value)]]}}]}))
    for too_much in ((value,), 1 << 5000, "x" * 5000):
        with pytest.raises(EncodingError):
            encode(too_much)
