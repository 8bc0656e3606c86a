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


class _NotRunError(Exception):
    """Another fixture failed, or skipped the test, which was neither hot nor cold."""


@pytest.fixture
def no_cold_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test, with each kernel and reason, if a kernel that is watched was cold while it ran."""
    from tritonprobe.testing import no_cold_calls as none_in

    gate = request.node.stash[_GATE] = ExitStack()
    gate.enter_context(none_in())
    yield
    _open(gate, _NotRunError())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The gate closes with the test's own call: at the fixture's end it would be an error beside a test that passed."""
    try:
        result = yield
    except BaseException as error:
        if _GATE in item.stash:  # the test failed by itself, which says enough
            _open(item.stash[_GATE], error)
        raise
    try:
        if _GATE in item.stash:
            item.stash[_GATE].close()
    except AssertionError as error:
        failed = pytest.fail.Exception(str(error), pytrace=False)  # no line of the test's says more
        raise failed from None
    return result


def _open(gate: ExitStack, because: BaseException) -> None:
    """Nothing is asked of the test any more. Does nothing if its gate is closed."""
    gate.__exit__(type(because), because, because.__traceback__)
