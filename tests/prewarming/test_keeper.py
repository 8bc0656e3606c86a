"""Each process's census in the directory, all of them as one, and the dead ones folded without counting twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.ledger.scrape import at_line, in_child
from tests.prewarming.caches import census_of
from tests.story.stories import cold_call
from tritonprobe.ledger import FileLedger
from tritonprobe.model import RequestCost
from tritonprobe.prewarming import keeper
from tritonprobe.prewarming.keeper import CensusKeeper, collect, fold
from tritonprobe.shapes.census import Census, merge


def dead(directory: Path) -> Path:
    """A file for the census of a process that is gone."""
    ledger = FileLedger(directory)
    assert ledger.path is not None
    path = ledger.path
    ledger.close()
    return path.with_name(f"census-{path.stem}.json")


def living(ledger: FileLedger) -> Path:
    assert ledger.path is not None
    return ledger.path.with_name(f"census-{ledger.path.stem}.json")


def fill(directory: Path, ledger: FileLedger, files: int) -> Census:
    """`files` of dead processes and one of a living; what they come to."""
    for i in range(files):
        census_of("add", f"k{i}").save(dead(directory))
    census_of("add").save(living(ledger))
    return merge(*(census_of("add", f"k{i}") for i in range(files)), census_of("add"))


def test_the_dead_are_folded_and_the_living_stay(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    whole = fill(tmp_path, ledger, 5)
    assert collect(tmp_path) == whole
    assert fold(tmp_path) == 0  # few lie where they are
    assert fold(tmp_path, above=3) == 5
    left = sorted(path.name for path in tmp_path.glob("census-*"))
    assert left == sorted([living(ledger).name, "census-folded.json"])
    assert (tmp_path / "census-folded.json").stat().st_mode & 0o777 == 0o600
    assert collect(tmp_path) == whole
    census_of("add").save(dead(tmp_path))
    assert fold(tmp_path, above=0) == 1
    assert collect(tmp_path) == merge(whole, census_of("add"))
    for path in tmp_path.glob("*.tpl"):  # as they are folded themselves
        if path != ledger.path:
            path.unlink()
    census_of("add").save(tmp_path / f"census-{'0' * 32}.json")
    assert fold(tmp_path, above=0) == 1


def test_what_a_user_keeps_beside_them_is_left_alone(tmp_path: Path) -> None:
    census_of("add").save(tmp_path / "census-of-yesterday.json")
    census_of("k1").save(dead(tmp_path))
    assert collect(tmp_path) == census_of("k1")
    assert fold(tmp_path, above=0) == 1
    assert collect(tmp_path) == census_of("k1")
    assert Census.load(tmp_path / "census-of-yesterday.json") == census_of("add")


def test_nothing_counts_twice_or_is_lost_whatever_kills_the_folder(tmp_path: Path) -> None:
    step = 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        ledger = FileLedger(directory)
        whole = fill(directory, ledger, 3)
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
    census_of("add").save(dead(tmp_path))
    damaged = dead(tmp_path)
    damaged.write_text("{")
    assert collect(tmp_path) == census_of("add")
    assert f"{damaged.name}: no census" in caplog.text


@pytest.mark.parametrize("where", ["a process's", "the folded one"])
def test_what_cannot_be_read_now_is_not_folded_away(where: str, tmp_path: Path) -> None:
    """It is of a later version, say, or this process has too many files open."""
    census_of("k0").save(dead(tmp_path))
    assert fold(tmp_path, above=0) == 1
    unread = dead(tmp_path) if where == "a process's" else tmp_path / "census-folded.json"
    if where == "a process's":
        census_of("k1").save(unread)
    text = unread.read_text()
    unread.write_text(json.dumps({**json.loads(text), "version": 99}))
    census_of("k2").save(dead(tmp_path))
    assert fold(tmp_path, above=0) == (1 if where == "a process's" else 0)
    assert unread.exists()
    unread.write_text(text)
    whole = merge(*(census_of(name) for name in (("k0", "k1", "k2") if where == "a process's" else ("k0", "k2"))))
    assert collect(tmp_path) == whole
    fold(tmp_path, above=0)
    assert collect(tmp_path) == whole


def test_a_child_forked_while_its_parent_folds_keeps_nobody_from_folding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    census_of("add").save(dead(tmp_path))
    children = []

    def fork_first(*_: object) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "write_whole", fork_first)
        with pytest.raises(InterruptedError):
            fold(tmp_path, above=0)
    try:
        assert fold(tmp_path, above=0) == 1
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_a_process_whose_ledger_is_gone_writes_no_census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory was emptied, or another one is in its place: it would be taken for a dead process's, and folded."""
    monkeypatch.setattr(keeper, "SOON", 60)
    ledger = FileLedger(tmp_path)
    faults: list[str] = []
    kept = CensusKeeper(ledger, lambda: census_of("add"), faults.append)
    kept.note(cold_call())
    assert ledger.path is not None
    ledger.path.unlink()
    kept.write()
    assert collect(tmp_path) == Census()
    assert faults == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_process_that_became_someone_else_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that drops its privileges once it has started: the directory is its former owner's."""
    monkeypatch.setattr(keeper, "SOON", 60)
    tmp_path.chmod(0o700)
    faults: list[str] = []
    kept = CensusKeeper(FileLedger(tmp_path), lambda: census_of("add"), faults.append)
    kept.note(cold_call())

    def as_someone_else() -> None:
        os.setuid(65534)
        kept._thread = threading.current_thread()
        kept.write()
        assert faults == ["census"]

    assert in_child(as_someone_else) == 0


def test_a_cold_call_is_written_soon_and_a_request_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SOON", 0.01)
    faults: list[str] = []
    kept = CensusKeeper(FileLedger(tmp_path), lambda: census_of("add"), faults.append)
    kept.note(RequestCost("r", "m", 0, 1, 2, 0, 1))
    kept.write()
    assert list(tmp_path.glob("census-*")) == []
    kept.note(cold_call())
    wait_for_one(tmp_path)
    (file,) = tmp_path.glob("census-*.json")
    assert Census.load(file) == census_of("add")
    assert file.stat().st_mode & 0o777 == 0o600  # as the ledgers beside it
    before = file.stat().st_mtime_ns
    kept.write()
    assert file.stat().st_mtime_ns == before  # there already
    assert faults == []


def wait_for_one(directory: Path) -> None:
    deadline = time.monotonic() + 10
    while not list(directory.glob("census-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)


def fail(part: str) -> None:
    raise AssertionError(part)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CensusKeeper, list[Census]]:
    """A keeper that writes once a minute, and a list with the census that there is now."""
    monkeypatch.setattr(keeper, "SOON", 60)
    now = [census_of("add")]
    return CensusKeeper(FileLedger(tmp_path), lambda: now[0], fail), now


def ended(work: Callable[[], object]) -> None:
    """A child that multiprocessing forked has done `work`, and ended."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_child_that_ends_at_once_leaves_what_it_met(tmp_path: Path, slow: tuple[CensusKeeper, list[Census]]) -> None:
    kept, _ = slow
    ended(lambda: kept.note(cold_call()))
    assert collect(tmp_path) == census_of("add")


def test_a_child_of_hot_launches_counts_what_its_parent_met(
    tmp_path: Path, slow: tuple[CensusKeeper, list[Census]]
) -> None:
    kept, now = slow
    kept.note(cold_call())
    kept.write()
    launched = Census.of(launches={("add", "n<=64"): 7})
    ended(lambda: now.__setitem__(0, launched))
    assert collect(tmp_path) == merge(census_of("add"), launched)


def test_a_child_that_launches_nothing_leaves_no_file(tmp_path: Path, slow: tuple[CensusKeeper, list[Census]]) -> None:
    kept, now = slow
    kept.note(cold_call())
    kept.write()
    ended(lambda: now.__setitem__(0, Census()))
    assert len(list(tmp_path.glob("census-*"))) == 1


def test_the_first_of_many_cold_calls_is_written_at_once(
    tmp_path: Path, slow: tuple[CensusKeeper, list[Census]]
) -> None:
    """So that a worker which is terminated within its first second leaves it."""
    kept, _ = slow
    for _ in range(3):
        kept.note(cold_call())
    wait_for_one(tmp_path)
    assert collect(tmp_path) == census_of("add")
