"""Dead processes' counts become one base file: exactly, under a lock, and whatever kills the folder meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.scrape import SMALL, at_line, counters, dies, everything, files, program, values
from tritonprobe.ledger import DirectoryReader, FileLedger, fold, schema, signs
from tritonprobe.ledger.alone import alone
from tritonprobe.ledger.fold import exact
from tritonprobe.ledger.layout import BASE_NAME, unpack_base

K = ("k", "all")


def test_few_dead_files_lie_where_they_are(tmp_path: Path) -> None:
    for _ in range(3):
        dies(tmp_path, 1)
    before = files(tmp_path)
    assert fold.fold(tmp_path) == fold.fold(tmp_path, above=3) == 0
    assert files(tmp_path) == before


def test_dead_files_become_one_base_and_the_living_stay(tmp_path: Path) -> None:
    living = FileLedger(tmp_path, size=SMALL)
    living.add(schema.LAUNCHES, K, 100)
    for i in range(5):
        dies(tmp_path, i, i + 1)
    reader = DirectoryReader(tmp_path)
    before = everything(reader)
    assert fold.fold(tmp_path, above=4) == 5
    assert living.path is not None
    assert files(tmp_path) == {BASE_NAME, "fold.lock", living.path.name}
    assert everything(reader) == everything(DirectoryReader(tmp_path)) == before
    for i in range(5):
        dies(tmp_path, i)
    before = everything(reader)
    assert fold.fold(tmp_path, above=4) == 5
    assert everything(reader) == everything(DirectoryReader(tmp_path)) == before


def test_a_base_names_only_files_that_may_still_be_there(tmp_path: Path) -> None:
    for _ in range(4):
        dies(tmp_path, 1)
        fold.fold(tmp_path, above=0)
    assert len(unpack_base((tmp_path / BASE_NAME).read_bytes()).folded) == 1


def test_scrapes_and_starts_fold_what_has_piled_up(tmp_path: Path) -> None:
    for _ in range(fold.DEAD_FILES + 1):
        dies(tmp_path, 1)
    reader = DirectoryReader(tmp_path)
    assert values(reader, schema.LAUNCHES) == {K: 65}
    assert files(tmp_path) == {BASE_NAME, "fold.lock"}
    for _ in range(fold.DEAD_FILES + 2):  # the last one, as it starts, folds those before it
        dies(tmp_path, 1)
    assert len(files(tmp_path)) == 3
    assert values(reader, schema.LAUNCHES) == {K: 131}


def test_two_never_fold_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        dies(tmp_path, 1)
    holder = program(
        "import fcntl\nf = open(sys.argv[1], 'w')\nfcntl.lockf(f, fcntl.LOCK_EX)\nprint('held', flush=True)\n"
        "sys.stdin.read()",
        tmp_path / "fold.lock",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert fold.fold(tmp_path, above=0) == 0
    holder.communicate()
    assert fold.fold(tmp_path, above=0) == 3


def test_what_was_left_by_a_birth_that_a_crash_cut_short_goes(tmp_path: Path) -> None:
    old, new = tmp_path / f".{'0' * 32}.tpl.new", tmp_path / f".{'1' * 32}.tpl.new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    dies(tmp_path, 1)
    fold.fold(tmp_path, above=0)
    assert not old.exists()
    assert new.exists()


def test_the_signs_of_processes_go_with_their_ledgers(tmp_path: Path) -> None:
    """A server that starts over and over would leave an answer each time, for nobody asks as often."""
    asked = signs.ask(tmp_path, "on")
    living = FileLedger(tmp_path, size=SMALL)
    for _ in range(3):
        dies(tmp_path, 1)
    for path in tmp_path.glob("*.tpl"):
        signs.answer(tmp_path, signs.Answer(path.stem, asked.token, ""))
    killed = [f".{name}.{'0' * 16}" for name in ("ready", "switch", f"switched.{'a' * 32}")]
    for name in (*killed, ".of somebody else", f".ready.{'1' * 16}"):
        (tmp_path / name).touch()
    for name in (*killed, ".of somebody else"):
        os.utime(tmp_path / name, (0, 0))
    assert fold.fold(tmp_path, above=0) == 3
    assert living.path is not None
    left = {living.path.name, f"{signs.ANSWER}{living.path.stem}", f".ready.{'1' * 16}", ".of somebody else"}
    assert files(tmp_path) == {BASE_NAME, "fold.lock", signs.SWITCH, *left}
    assert signs.asked(tmp_path) == asked


def test_who_waits_folds_after_who_folds(tmp_path: Path) -> None:
    dies(tmp_path, 1)
    with alone(tmp_path / "fold.lock") as ours:
        assert ours
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(fold.fold(tmp_path, above=0, wait=60.0)))
        waiting.start()
        assert fold.fold(tmp_path, above=0) == 0
    waiting.join()
    assert found == [1]


def test_a_full_file_system_stops_the_fold_and_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        dies(tmp_path, 1)
    # The base's temporary name is taken by something that cannot be written.
    (tmp_path / ".base.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="symbolic links"):
        fold.fold(tmp_path, above=0)
    assert values(DirectoryReader(tmp_path), schema.LAUNCHES) == {K: 2}
    (tmp_path / ".base.new").unlink()
    assert fold.fold(tmp_path, above=0) == 2


def test_beyond_its_bound_a_base_counts_in_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_SLOTS", 230)
    for i in range(100):
        dies(tmp_path, 1, kernel=f"kernel_{i}")
    fold.fold(tmp_path, above=0)
    found = values(DirectoryReader(tmp_path), schema.LAUNCHES)
    assert sum(found.values()) == 100
    assert found["other", "all" if ("other", "all") in found else "other"] > 50


def test_killed_between_any_two_steps_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A child folds and is killed before its n-th line, for each n there is; then all is as it was, and goes on."""
    origin = tmp_path / "origin"
    origin.mkdir()
    for i in range(3):
        dies(origin, i + 0.1)
    assert fold.fold(origin, above=0) == 3  # a base to begin with
    for i in range(3):
        dies(origin, i + 0.3)
    expected = counters(DirectoryReader(origin))
    steps, place = 0, tmp_path / "place"
    states: set[tuple[bool, bool, int]] = set()
    while True:
        shutil.copytree(origin, place)
        status = killed_at(steps, lambda: fold.fold(place, above=0))
        states.add(
            (
                (place / ".base.new").exists(),
                (place / BASE_NAME).read_bytes() == (origin / BASE_NAME).read_bytes(),
                len(list(place.glob("*.tpl"))),
            )
        )
        reader = DirectoryReader(place)
        assert counters(reader) == expected, steps
        assert reader.problems == {}
        dies(place, 5)  # so that there is something to fold in any case
        after = counters(reader)
        fold.fold(place, above=0)
        assert counters(reader) == counters(DirectoryReader(place)) == after, steps
        assert files(place) == {BASE_NAME, "fold.lock"}
        shutil.rmtree(place)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        steps += 1
    assert steps > 60
    # It was caught before the base, beside it, with the new one in place, and amid the removal.
    assert {(False, True, 3), (True, True, 3), (False, False, 3), (False, False, 2), (False, False, 0)} <= states


def killed_at(step: int, work: Callable[[], object]) -> int:
    """Forks a child that does `work` and kills itself before the step-th line of `fold`. Returns its wait status."""
    pid = os.fork()
    if pid == 0:
        at_line(step, fold, lambda: os.kill(os.getpid(), signal.SIGKILL), work)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@given(st.lists(st.floats(-1e300, 1e300), max_size=30))
def test_an_exact_sum_is_exact(numbers: list[float]) -> None:
    parts = exact(numbers)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, numbers))
    assert len(parts) <= 1 + len(numbers)


def test_a_fold_moves_no_last_bit(tmp_path: Path) -> None:
    chosen = random.Random(1)
    living = FileLedger(tmp_path, size=SMALL)
    labels = ("k", "ptx", "0")
    reader = DirectoryReader(tmp_path)
    for _ in range(60):
        living.add(schema.COLD_SECONDS, labels, chosen.random() * 10 ** chosen.randint(-9, 3))
        for _ in range(3):
            FileLedger(tmp_path, size=SMALL).add(
                schema.COLD_SECONDS, labels, chosen.random() * 10 ** chosen.randint(-9, 3)
            )
        before = values(reader, schema.COLD_SECONDS)
        assert fold.fold(tmp_path, above=0) == 3
        assert values(reader, schema.COLD_SECONDS) == before
