"""Windows in which each launch is seen where it leaves Triton."""

from __future__ import annotations

from typing import Any

import torch

from tests.adapter.conftest import interrupted
from tritonprobe.runtime import Runtime
from tritonprobe.seen import Seen

X = torch.empty(64)


def test_wherever_a_launch_is_interrupted_none_stays_under_way(instrumented: Runtime, add: Any) -> None:
    windows, seen = instrumented.adapter.windows, list[Seen]()
    add(X, X, X, 64)
    windows.open(seen.append)
    try:
        event = 1
        while interrupted(lambda: add(X, X, X, 64), event, "launch", "_tell", "key"):
            assert windows.drained(0), "a window would wait for it, and never find a gap between launches"
            event += 1
        assert event > 5
    finally:
        windows.close(seen.append)
    assert len(seen) > 1
    assert all(0 < launch.start_ns <= launch.end_ns for launch in seen if launch.returned)
