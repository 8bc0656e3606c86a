"""A directory of ledger files as one ledger: what adds up, what dies with its process, and no counter ever falls."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.export.conftest import Probed, prometheus_server
from tests.ledger.scrape import at_line, counters, everything, finished, histogram, program, values
from tritonprobe.export.http import serve
from tritonprobe.ledger import DirectoryReader, FileLedger, Ledger, fold, schema
from tritonprobe.ledger.fold import exact
from tritonprobe.ledger.layout import BASE_NAME, COUNT_AT, Base, Plan, pack_base, unpack_base

__all__ = ["prometheus_server"]  # a fixture of another room

K = ("k", "all")
SMALL = 1 << 16


def dies(folder: Path, *amounts: float, kernel: str = "k") -> None:
    """A process that counted and is dead: nobody holds its file any more."""
    ledger = FileLedger(folder, size=SMALL)
    for amount in amounts:
        ledger.add(schema.LAUNCHES, (kernel, "all"), amount)
        ledger.add(schema.COLD_SECONDS, (kernel, "ptx", "0"), amount / 10)
        ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), amount / 10)
    ledger.set(schema.VARIANTS, (kernel,), 7)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_counters_and_histograms_add_up_over_the_living_and_the_dead(tmp_path: Path) -> None:
    dies(tmp_path, 1, 2)
    living = FileLedger(tmp_path, size=SMALL)
    living.add(schema.LAUNCHES, K, 4)
    living.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.4)
    reader = DirectoryReader(tmp_path)
    assert values(reader, schema.LAUNCHES) == {K: 7}
    found = histogram(reader, schema.COLD_CALL_SECONDS, "compile")
    assert sum(found.counts) == 3
    assert found.sum == pytest.approx(0.7)
    assert values(reader, schema.VARIANTS) == {}


def test_gauges_are_those_of_the_living_by_their_rule(tmp_path: Path) -> None:
    living = [FileLedger(tmp_path, size=SMALL) for _ in range(3)]
    for i, ledger in enumerate(living):
        ledger.set(schema.VARIANTS, ("k",), 10 * (i + 1))  # a sum
        ledger.set(schema.READY, (), 100.0 + i)  # the latest
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), 50.0 + i)  # the oldest
        ledger.set(schema.INFO, ("1", "3.6.0", "none", "rewrite"), 1.0)
    reader = DirectoryReader(tmp_path)

    def gauges() -> list[dict[tuple[str, ...], float]]:
        metrics = (schema.VARIANTS, schema.READY, schema.COLD_IN_PROGRESS, schema.INFO)
        return [values(reader, metric) for metric in metrics]

    info = {("1", "3.6.0", "none", "rewrite"): 1.0}
    assert gauges() == [{("k",): 60}, {(): 102}, {("0",): 50}, info]
    del ledger, living[2]
    assert gauges() == [{("k",): 30}, {(): 101}, {("0",): 50}, info]
    living[0].set(schema.COLD_IN_PROGRESS, ("0",), None)
    assert values(reader, schema.COLD_IN_PROGRESS) == {("0",): 51}
    living.clear()
    assert gauges() == [{}, {}, {}, {}]


def test_hits_in_memory_are_derived_from_the_sums(tmp_path: Path) -> None:
    ranks = [FileLedger(tmp_path, size=SMALL) for _ in range(4)]
    reader = DirectoryReader(tmp_path)

    def hits() -> float:
        return values(reader, schema.LOOKUPS).get((*K, "memory"), math.nan)

    ranks[0].set(schema.VARIANTS, ("k",), 1)
    for ledger in ranks:  # all of them compile the same kernel at the same time
        ledger.add(schema.LAUNCHES, K)
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    assert hits() == 0
    ranks[0].add(schema.LAUNCHES, K, 10)
    assert hits() == 10
    for ledger in ranks:
        ledger.add(schema.LOOKUPS, (*K, "compile"))
        ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
        assert hits() == 10
    assert values(reader, schema.LOOKUPS) == {(*K, "compile"): 4, (*K, "memory"): 10}


def test_an_empty_directory_has_what_the_schema_creates(tmp_path: Path) -> None:
    assert {key[0] for key in everything(DirectoryReader(tmp_path))} == {m.name for m in schema.METRICS if m.created}


def test_one_budget_holds_for_all_processes(tmp_path: Path) -> None:
    gauges, counting = (FileLedger(tmp_path, size=1 << 18) for _ in range(2))
    for i in range(300):
        gauges.set(schema.VARIANTS, (f"{i}",), 1)
    reader = DirectoryReader(tmp_path, budget=1000)
    assert len(values(reader, schema.VARIANTS)) == 300
    for i in range(1000):
        counting.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
    found = values(reader, schema.LAUNCHES)
    assert sum(found.values()) == 1000
    assert 100 < len(found) < 400
    drops = {("launches_total",): 1000 - len(found) + 1}
    assert values(reader, schema.SERIES_DROPPED) == drops
    del gauges  # which makes room; what `other` has counted stays there all the same
    assert values(reader, schema.VARIANTS) == {}
    assert values(reader, schema.LAUNCHES) == found
    assert values(reader, schema.SERIES_DROPPED) == drops


def test_a_compile_is_never_taken_for_a_hit_whenever_one_looks(tmp_path: Path) -> None:
    compiling = program(
        """
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
for i in range(10_000_000):
    pair = ("k", f"b{i % 100}")
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    ledger.add(schema.LAUNCHES, pair)
    ledger.add(schema.LOOKUPS, (*pair, "compile"))
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), None)
    if i == 200: print("warm", flush=True)
""",
        tmp_path,
    )
    try:
        assert compiling.stdout is not None
        compiling.stdout.readline()
        reader = DirectoryReader(tmp_path)
        for _ in range(300):
            found = values(reader, schema.LOOKUPS)
            assert {value for (_, _, tier), value in found.items() if tier == "memory"} == {0}
            assert sum(found.values()) > 100
    finally:
        compiling.kill()
        compiling.communicate()


class TestFold:
    def test_few_dead_files_lie_where_they_are(self, tmp_path: Path) -> None:
        for _ in range(3):
            dies(tmp_path, 1)
        before = files(tmp_path)
        assert fold.fold(tmp_path) == fold.fold(tmp_path, above=3) == 0
        assert files(tmp_path) == before

    def test_dead_files_become_one_base_and_the_living_stay(self, tmp_path: Path) -> None:
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

    def test_a_base_names_only_files_that_may_still_be_there(self, tmp_path: Path) -> None:
        for _ in range(4):
            dies(tmp_path, 1)
            fold.fold(tmp_path, above=0)
        assert len(unpack_base((tmp_path / BASE_NAME).read_bytes()).folded) == 1

    def test_scrapes_and_starts_fold_what_has_piled_up(self, tmp_path: Path) -> None:
        for _ in range(fold.DEAD_FILES + 1):
            dies(tmp_path, 1)
        reader = DirectoryReader(tmp_path)
        assert values(reader, schema.LAUNCHES) == {K: 65}
        assert files(tmp_path) == {BASE_NAME, "fold.lock"}
        for _ in range(fold.DEAD_FILES + 2):  # the last one, as it starts, folds those before it
            dies(tmp_path, 1)
        assert len(files(tmp_path)) == 3
        assert values(reader, schema.LAUNCHES) == {K: 131}

    def test_two_never_fold_at_once(self, tmp_path: Path) -> None:
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

    def test_what_was_left_by_a_birth_that_a_crash_cut_short_goes(self, tmp_path: Path) -> None:
        old, new = tmp_path / f".{'0' * 32}.tpl.new", tmp_path / f".{'1' * 32}.tpl.new"
        for path in (old, new):
            path.touch()
        os.utime(old, (0, 0))
        dies(tmp_path, 1)
        fold.fold(tmp_path, above=0)
        assert not old.exists()
        assert new.exists()

    def test_a_full_file_system_stops_the_fold_and_nothing_else(self, tmp_path: Path) -> None:
        for _ in range(2):
            dies(tmp_path, 1)
        # The base's temporary name is taken by something that cannot be written.
        (tmp_path / ".base.new").symlink_to("/dev/full")
        with pytest.raises(OSError, match="symbolic links"):
            fold.fold(tmp_path, above=0)
        assert values(DirectoryReader(tmp_path), schema.LAUNCHES) == {K: 2}
        (tmp_path / ".base.new").unlink()
        assert fold.fold(tmp_path, above=0) == 2

    def test_beyond_its_bound_a_base_counts_in_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fold, "MAX_SLOTS", 230)
        for i in range(100):
            dies(tmp_path, 1, kernel=f"kernel_{i}")
        fold.fold(tmp_path, above=0)
        found = values(DirectoryReader(tmp_path), schema.LAUNCHES)
        assert sum(found.values()) == 100
        assert found["other", "all" if ("other", "all") in found else "other"] > 50

    def test_killed_between_any_two_steps_it_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
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


def test_scrapes_during_folds_forks_and_deaths_never_see_a_counter_fall(tmp_path: Path) -> None:
    """A program forks, counts, dies and folds as fast as it can, under a reader that stays and ones made anew."""
    churn = program(
        """
from tritonprobe.ledger import fold
folder = Path(sys.argv[1])
ledger = FileLedger(folder, size=1 << 16)
cell = ledger.cell(schema.LAUNCHES, K)
said = 0
while os.getppid() == int(sys.argv[2]):
    if os.fork() == 0:
        for i in range(20):
            cell[0] += 1
            ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 0.1)
            ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.7)
        os.kill(os.getpid(), 9)
    os.wait()
    said += 20
    fold.fold(folder, above=5)
    os.write(1, b"%d\\n" % said)
""",
        tmp_path,
        str(os.getpid()),
    )
    assert churn.stdout is not None
    try:
        said, stays, before = 0, DirectoryReader(tmp_path), counters(DirectoryReader(tmp_path))
        folds = 0
        base: bytes | None = None
        while folds < 30:
            for reader in (stays, DirectoryReader(tmp_path)):
                now = counters(reader)
                assert reader.problems == {}
                for key, numbers in before.items():
                    assert all(new >= old for new, old in zip(now[key], numbers, strict=True)), key
                before = now
            said = int(churn.stdout.readline())
            assert values(stays, schema.LAUNCHES)[K] >= said
            latest = (tmp_path / BASE_NAME).read_bytes()[:64] if (tmp_path / BASE_NAME).exists() else None
            folds += latest != base
            base = latest
    finally:
        churn.kill()
        churn.communicate()


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


def spoil(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def named_by(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """The one problem of a directory in which another process counted one launch of K."""
    caplog.clear()
    reader = DirectoryReader(folder)
    with caplog.at_level(logging.WARNING):
        assert values(reader, schema.LAUNCHES)[K] == 1
        assert values(reader, schema.ERRORS) == {("ledger_file",): 1}
        assert values(reader, schema.ERRORS) == {("ledger_file",): 1}
    (name,) = reader.problems
    assert [record.message for record in caplog.records] == [f"tritonprobe: {folder / name}: {reader.problems[name]}"]
    return f"{name}: {reader.problems[name]}"


@pytest.fixture
def good_and_bad(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A directory with a good file, in which one launch of K was counted, and one that a test may spoil."""
    good = FileLedger(tmp_path, size=SMALL)
    good.add(schema.LAUNCHES, K)
    before = files(tmp_path)
    dies(tmp_path, 10, kernel="lost")
    (bad,) = files(tmp_path) - before
    yield tmp_path, tmp_path / bad
    # What cannot be read in full is not folded, so that nothing of it is lost.
    dies(tmp_path, 1)
    fold.fold(tmp_path, above=0)
    assert bad in files(tmp_path) or not (tmp_path / bad).exists()


class TestBadFiles:
    def test_a_foreign_file(self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
        folder, bad = good_and_bad
        bad.write_bytes(b"#!/bin/sh\n" * 1000)
        assert named_by(folder, caplog) == f"{bad.name}: foreign: it is no ledger of tritonprobe"

    def test_a_file_of_another_name(self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
        folder, bad = good_and_bad
        bad = bad.rename(folder / "copy.tpl")
        assert named_by(folder, caplog).startswith("copy.tpl: foreign: its name is not the one it was given")
        bad.unlink()

    @pytest.mark.parametrize(
        ("length", "named"),
        [(0, "no whole header"), (100, "no whole header"), (5000, "it has 5000 bytes of 65536")],
    )
    def test_a_truncated_file(
        self, length: int, named: str, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, bad = good_and_bad
        os.truncate(bad, length)
        assert f"{bad.name}: cut short: " in named_by(folder, caplog)
        assert named in named_by(folder, caplog)

    def test_a_file_of_a_newer_version(self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
        folder, bad = good_and_bad
        spoil(bad, 8, struct.pack("=I", 2))
        assert "written by newer tritonprobe: its format is 2, this one reads 1" in named_by(folder, caplog)

    def test_a_link_a_pipe_and_a_directory(
        self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, bad = good_and_bad
        bad.unlink()
        bad.symlink_to("/etc/passwd")
        assert named_by(folder, caplog) == f"{bad.name}: cannot be read (Too many levels of symbolic links)"
        bad.unlink()
        os.mkfifo(bad)
        assert named_by(folder, caplog) == f"{bad.name}: foreign: it is no regular file"
        bad.unlink()
        bad.mkdir()
        assert named_by(folder, caplog) == f"{bad.name}: foreign: it is no regular file"
        bad.rmdir()

    def test_a_damaged_index_is_read_up_to_there(
        self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, bad = good_and_bad
        data = bad.read_bytes()
        at = data.index(b"lost", Plan(SMALL).index_at)
        spoil(bad, at, b"LOST")
        assert "an index record fails its checksum; the" in named_by(folder, caplog)

    def test_more_records_announced_than_there_are(
        self, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, bad = good_and_bad
        spoil(bad, COUNT_AT, struct.pack("=Q", 2**60))
        reader = DirectoryReader(folder)
        assert values(reader, schema.LAUNCHES) == {K: 1, ("lost", "all"): 10}
        assert "an index record has an impossible length" in reader.problems[bad.name]

    def test_series_of_another_version(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Another version's process, whose metric has finer bounds under the same name."""
        FileLedger(tmp_path, size=SMALL).add(schema.LAUNCHES, K)
        out, _ = finished(
            """
from tritonprobe.ledger import file, layout
own = layout.schema_id
file.schema_id = lambda metric: own(metric) ^ (metric is schema.TTFT)
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
ledger.observe(schema.TTFT, ("m",), 0.5)
print(ledger.path.name)
""",
            tmp_path,
        )
        assert named_by(tmp_path, caplog) == (
            f"{out.strip()}: 1 series are left out: they are another version's of tritonprobe"
        )
        assert fold.fold(tmp_path, above=0) == 1  # the other one waits for a reader that knows it
        assert out.strip() in files(tmp_path)

    def test_a_base_that_cannot_be_read(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        living = FileLedger(tmp_path, size=SMALL)
        living.add(schema.LAUNCHES, K)
        dies(tmp_path, 10, kernel="lost")
        fold.fold(tmp_path, above=0)
        reader = DirectoryReader(tmp_path)
        before = everything(reader)
        whole = (tmp_path / BASE_NAME).read_bytes()
        spoil(tmp_path / BASE_NAME, len(whole) - 1, bytes([whole[-1] ^ 1]))
        spoil(tmp_path / BASE_NAME, 16, bytes(16))  # another base, not the one that is known
        assert "damaged: it fails its checksum" in named_by(tmp_path, caplog)
        # Who had read it goes on with what it knows, and nobody writes over it.
        now = everything(reader)
        assert {key: now[key] for key in before} == before
        dies(tmp_path, 1)
        with pytest.raises(ValueError, match="fails its checksum"):
            fold.fold(tmp_path, above=0)
        (tmp_path / BASE_NAME).write_bytes(pack_base(Base(bytes(range(16)), (), ())))
        assert values(reader, schema.LAUNCHES) == {K: 2}
        assert reader.problems == {}


def test_a_directory_that_is_gone_leaves_the_last_counts_and_no_gauges(tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    dies(place, 3)
    living = FileLedger(place, size=SMALL)
    living.set(schema.VARIANTS, ("k",), 2)
    reader = DirectoryReader(place)
    before = counters(reader)
    shutil.rmtree(place)
    assert counters(reader).items() >= {**before, ("errors_total", ("ledger_file",)): (1.0,)}.items()
    assert values(reader, schema.VARIANTS) == {}
    assert reader.problems == {".": "cannot be read (No such file or directory)"}


def test_prometheus_sees_no_reset_through_deaths_restarts_forks_and_folds(
    tmp_path: Path, prometheus_server: Callable[..., Any]
) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    reader: Any = DirectoryReader(folder)
    ledger: Ledger = reader
    probed = Probed(ledger)
    work = """
from tritonprobe.ledger import fold
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
cell = ledger.cell(schema.LAUNCHES, K)
while True:
    if os.fork() == 0:
        for _ in range(10):
            cell[0] += 1
            ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 0.1)
        os._exit(0)
    os.wait()
    cell[0] += 1
    fold.fold(Path(sys.argv[1]), above=3)
"""
    with serve(probed) as server:
        running = program(work, folder)
        try:
            prometheus = prometheus_server([server.url])
            series = 'tritonprobe_launches_total{kernel="k"}'
            prometheus.wait_for_scrapes(series, 2)
            for scrapes in (6, 12, 18):
                running.kill()
                running.communicate()
                running = program(work, folder)
                prometheus.wait_for_scrapes(series, scrapes)
            running.kill()
            running.communicate()
            last = values(reader, schema.LAUNCHES)[K]
            prometheus.wait_for(series, lambda found: set(found.values()) == {last})
            names = [f"tritonprobe_{name}" for name, _ in counters(reader)]
            suffixes = {False: [""], True: ["_bucket", "_sum", "_count"]}
            counting = {name + end for name in names for end in suffixes[not name.endswith("_total")]}
            resets = {name: prometheus.query(f"resets({name}[5m])") for name in sorted(counting)}
        finally:
            running.kill()
            running.communicate()
    assert {"tritonprobe_cold_call_seconds_bucket", "tritonprobe_cold_seconds_total"} <= resets.keys()
    assert {count for found in resets.values() for count in found.values()} == {0}
    assert all(resets.values())
    assert (folder / BASE_NAME).exists()
