"""What an installed tritonprobe must bring along beside its modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["tritonprobe", "kernels/tritonprobe_kernels"])
def test_each_file_that_is_no_module_is_package_data(package: str) -> None:
    folder = ROOT / package
    (listed,) = re.findall(rf"^{folder.name} = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    there = {f for f in folder.rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc", ".md")}
    assert there == {f for pattern in re.findall(r'"([^"]+)"', listed) for f in folder.glob(pattern)}
