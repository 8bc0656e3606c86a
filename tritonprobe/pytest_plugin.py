"""A pytest plugin with one fixture, `no_cold_calls`: a test that takes it fails if a watched kernel was cold in it.

    def test_decoding_is_hot(engine, no_cold_calls):
        engine.decode(...)

It is there wherever tritonprobe is installed. Importing it imports neither Triton nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

_GATE = pytest.StashKey[ExitStack]()
"""Of a test that takes the fixture: what ends with its call, and raises if something was cold."""


_Failed: Any = pytest.fail.Exception


class ColdError(_Failed, AssertionError):  # type: ignore[misc]  # a class that pytest gives no public type
    """Shown without a traceback as pytest's own failures are, for no line of the test's says more; and an assertion,
    which `xfail(raises=AssertionError)` expects."""

    __module__ = "builtins"  # as that of pytest's own: a summary then has room for what was cold

    def __init__(self, what: str) -> None:
        _Failed.__init__(self, what, pytrace=False)


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
        raise ColdError(str(error)) from None
    return result


def _open(gate: ExitStack, because: BaseException) -> None:
    """Nothing is asked of the test any more. Does nothing if its gate is closed."""
    gate.__exit__(type(because), because, because.__traceback__)
