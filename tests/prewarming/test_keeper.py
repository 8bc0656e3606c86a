"""Each process's census in the directory, all of them as one, and the dead ones folded without counting twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.ledger.scrape import at_line
from tests.prewarming.caches import census_of
from tests.story.stories import cold_call
from tritonprobe.model import RequestCost
from tritonprobe.prewarming import keeper
from tritonprobe.prewarming.keeper import CensusKeeper, collect, fold
from tritonprobe.shapes.census import Census, merge


def dead() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def fill(directory: Path, files: int) -> Census:
    """`files` of dead processes and one of a living; what they come to."""
    pid = dead()
    for i in range(files):
        census_of("add", f"k{i}").save(directory / f"census-{pid}-{i}.json")
    census_of("add").save(directory / f"census-{os.getpid()}-1.json")
    return merge(*(census_of("add", f"k{i}") for i in range(files)), census_of("add"))


def test_the_dead_are_folded_and_the_living_stay(tmp_path: Path) -> None:
    whole = fill(tmp_path, 5)
    assert collect(tmp_path) == whole
    assert fold(tmp_path) == 0  # few lie where they are
    assert fold(tmp_path, above=3) == 5
    left = sorted(path.name for path in tmp_path.glob("census-*"))
    assert left == sorted([f"census-{os.getpid()}-1.json", "census-folded.json"])
    assert (tmp_path / "census-folded.json").stat().st_mode & 0o777 == 0o600
    assert collect(tmp_path) == whole
    census_of("add").save(tmp_path / f"census-{dead()}-9.json")
    assert fold(tmp_path, above=0) == 1
    assert collect(tmp_path) == merge(whole, census_of("add"))


def test_nothing_counts_twice_or_is_lost_whatever_kills_the_folder(tmp_path: Path) -> None:
    step = 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        whole = fill(directory, 3)
        child = os.fork()
        if child == 0:
            at_line(step, keeper, lambda: os.kill(os.getpid(), signal.SIGKILL), partial(fold, directory, above=0))
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert collect(directory) == whole, step
        fold(directory, above=0)
        assert collect(directory) == whole, step
        if not killed:
            break
        step += 1
    assert step > 15


def test_a_file_that_cannot_be_read_is_told_of_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    census_of("add").save(tmp_path / "census-1-1.json")
    (tmp_path / "census-2-1.json").write_text("{")
    assert collect(tmp_path) == census_of("add")
    assert "census-2-1.json: no census" in caplog.text


def test_a_cold_call_is_written_soon_and_a_request_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SOON", 0.01)
    faults: list[str] = []
    kept = CensusKeeper(tmp_path, lambda: census_of("add"), faults.append)
    kept.note(RequestCost("r", "m", 0, 1, 2, 0, 1))
    kept.write()
    assert list(tmp_path.iterdir()) == []
    kept.note(cold_call())
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob("census-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    (file,) = tmp_path.glob("census-*.json")
    assert Census.load(file) == census_of("add")
    assert file.stat().st_mode & 0o777 == 0o600  # as the ledgers beside it
    before = file.stat().st_mtime_ns
    kept.write()
    assert file.stat().st_mtime_ns == before  # there already
    assert faults == []
