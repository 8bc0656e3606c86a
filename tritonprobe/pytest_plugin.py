"""A pytest plugin with one fixture, `no_cold_calls`: a test that takes it fails if a watched kernel was cold in it.

    def test_decoding_is_hot(engine, no_cold_calls):
        engine.decode(...)

It is there wherever tritonprobe is installed. Importing it imports neither Triton nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_cold_calls() -> Iterator[None]:
    """Fails the test, with each kernel and reason, if a kernel that is watched was cold while it ran."""
    from tritonprobe.testing import no_cold_calls as none_in

    with none_in():
        yield
