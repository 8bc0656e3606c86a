"""The server that the client's tests talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.traffic.scripted_server import ScriptedServer, serving


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving() as scripted:
        yield scripted
