"""``prewarm --tune``: winners are chosen in a process that may die of a trial, and is started again without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from tests.prewarming.test_command_line import tritonprobe
from tritonprobe.shapes.census import Census


def test_a_trial_that_crashes_is_named_and_the_others_are_tuned(tmp_path: Path) -> None:
    census, tuned = tmp_path / "census.json", tmp_path / "tuned.json"
    program = ("--", sys.executable, "-m", "tests.prewarming.trials_elsewhere")
    done = tritonprobe("run", "--port", "0", "--record", census, *program, cache=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert {t.kernel.rpartition(".")[2] for t in Census.load(census).tunings.values()} == {"add_kernel", "scale_kernel"}
    words = ("prewarm", census, "--tune", "-o", tuned, "--allow", "tests.prewarming.trials_elsewhere", "--json")
    done = tritonprobe(*words, cache=tmp_path / "second")
    assert done.returncode == 0, done.stderr
    skipped = {row["kernel"]: row["because"] for row in json.loads(done.stdout)["skipped"]}
    assert "a trial ended its process (" in skipped["tests.adapter.kernels.scale_kernel"]
    assert "tests.adapter.kernels.add_kernel" not in skipped
    measured = [t for t in Census.load(tuned).tunings.values() if t.measured]
    assert [(t.kernel, "BLOCK: 64" in t.winner or "BLOCK: 128" in t.winner) for t in measured] == [
        ("tests.adapter.kernels.add_kernel", True)
    ]


def test_tuning_and_a_target_exclude_each_other(tmp_path: Path) -> None:
    Census().save(tmp_path / "c.json")
    done = tritonprobe("prewarm", tmp_path / "c.json", "--tune", "--target", "cuda:90")
    assert done.returncode == 2
    assert "--tune needs a GPU" in done.stderr
