"""``prewarm --tune``: winners are chosen in a process that may die of a trial, and is started again without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from tests.prewarming.test_command_line import tritonprobe
from tritonprobe.cli.tuning_child import choose
from tritonprobe.shapes.census import Census


def test_a_trial_that_crashes_is_named_and_the_others_are_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    census = tmp_path / "census.json"
    program = ("--", sys.executable, "-m", "tests.prewarming.trials_elsewhere")
    done = tritonprobe("run", "--port", "0", "--record", census, *program, cache=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert {t.kernel.rpartition(".")[2] for t in Census.load(census).tunings.values()} == {"add_kernel", "scale_kernel"}
    monkeypatch.setenv("TRITONPROBE_DEVICE", "compile-only:cuda:90")  # the command would refuse it
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    tuned, crashed = choose(Census.load(census), ["tests.prewarming.trials_elsewhere"], None)
    skipped = {each.kernel: each.because for each in crashed}
    assert "a trial ended its process (" in skipped["tests.adapter.kernels.scale_kernel"]
    assert "tests.adapter.kernels.add_kernel" not in skipped
    measured = [t for t in tuned.tunings.values() if t.measured]
    assert [(t.kernel, "BLOCK: 64" in t.winner or "BLOCK: 128" in t.winner) for t in measured] == [
        ("tests.adapter.kernels.add_kernel", True)
    ]


def test_tuning_and_a_target_exclude_each_other(tmp_path: Path) -> None:
    Census().save(tmp_path / "c.json")
    done = tritonprobe("prewarm", tmp_path / "c.json", "--tune", "--target", "cuda:90")
    assert done.returncode == 2
    assert "--tune needs a GPU" in done.stderr


def test_tuning_is_refused_where_nothing_can_be_measured(tmp_path: Path) -> None:
    census, tuned = tmp_path / "c.json", tmp_path / "tuned.json"
    Census().save(census)
    done = tritonprobe("prewarm", census, "--tune", "-o", tuned)  # on the compile-only device
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert "--tune measures on a GPU, and TRITONPROBE_DEVICE=compile-only:cuda:90 is none" in said
    assert not tuned.exists()
