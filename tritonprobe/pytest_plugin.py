"""A pytest plugin with one fixture, `no_cold_calls`: a test that takes it fails if a watched kernel was cold in it.

    def test_decoding_is_hot(engine, no_cold_calls):
        engine.decode(...)

It is there wherever tritonprobe is installed. Importing it imports neither Triton nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

_GATE = pytest.StashKey[ExitStack]()
"""Of a test that takes the fixture: what ends with its call, and raises if something was cold."""


@pytest.fixture
def no_cold_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test, with each kernel and reason, if a kernel that is watched was cold while it ran."""
    from tritonprobe.testing import no_cold_calls as none_in

    with ExitStack() as gate:
        gate.enter_context(none_in())
        request.node.stash[_GATE] = gate
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The gate closes with the test's own call: at the fixture's end it would be an error beside a test that passed."""
    try:
        result = yield
    except BaseException as error:
        if _GATE in item.stash:  # the test failed by itself, which says enough
            item.stash[_GATE].__exit__(type(error), error, error.__traceback__)
        raise
    if _GATE in item.stash:
        try:
            item.stash[_GATE].close()
        except AssertionError as error:
            pytest.fail(str(error), pytrace=False)  # no line of the test's says more
    return result
