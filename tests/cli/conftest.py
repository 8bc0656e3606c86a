"""The server that `bench serve` replays against in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.traffic.scripted_server import ScriptedServer, serving


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving() as scripted:
        yield scripted
