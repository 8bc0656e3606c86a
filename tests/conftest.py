"""What every test may use: tools on the PATH, and the `gpu` marker; and what none has from who runs it: a terminal.

A test that needs a tool calls `require_tool("promtool")`: without it the test is skipped by name, or fails when the
tool is listed in TRITONPROBE_REQUIRE (as in CI, where nothing may be skipped for want of a tool).
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("tritonprobe", deadline=None)
settings.load_profile("tritonprobe")


# Programs that tests start have no terminal, and are told of none. Some CI systems set the colours for every job.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "NO_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)


def require_tool(name: str) -> str:
    """The path of the program `name`."""
    found = shutil.which(name)
    if found is not None:
        return found
    if name in os.environ.get("TRITONPROBE_REQUIRE", "").split(","):
        pytest.fail(f"{name} is not on the PATH, and TRITONPROBE_REQUIRE demands it")
    pytest.skip(f"{name} is not on the PATH")


def require_module(name: str) -> None:
    """Goes on only where the optional module `name` can be imported; at the top of a test module, too."""
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its parent is there
        found = False
    if found:
        return
    if name in os.environ.get("TRITONPROBE_REQUIRE", "").split(","):
        pytest.fail(f"{name} is not installed, and TRITONPROBE_REQUIRE demands it")
    pytest.skip(f"{name} is not installed", allow_module_level=True)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))
