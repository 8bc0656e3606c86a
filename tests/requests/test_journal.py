"""The ring that processes of one engine read: what comes through, what is lost, what a dead writer leaves."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonprobe.requests import journal
from tritonprobe.requests.journal import SUFFIX, Kind, Peers, Reader, Record, Writer, ref, sweep

ENGINE = ref("engine")
numbers = st.integers(0, (1 << 63) - 1)
records = st.builds(Record, st.sampled_from(Kind), numbers, numbers, numbers, numbers, numbers)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(records, max_size=20), max_size=5))
def test_what_is_written_is_read_once(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("journal")
    writer = Writer(folder, ENGINE)
    reader = Reader(writer.path)
    for batch in batches:
        for record in batch:
            writer.write(record)
        assert list(reader.news()) == batch
        assert list(reader.news()) == []
    assert reader.lost == 0
    reader.close()
    writer.close()


def test_a_ring_that_went_round_says_how_many_are_lost(tmp_path: Path):
    writer = Writer(tmp_path, ENGINE)
    reader = Reader(writer.path)
    writer.write(Record(Kind.STALL, 0, 1))
    assert len(list(reader.news())) == 1
    for i in range(journal.RECORDS + 10):
        writer.write(Record(Kind.STALL, i, i + 1))
    assert [record.start for record in reader.news()] == list(range(10, journal.RECORDS + 10))
    assert reader.lost == 10
    late = Reader(writer.path)
    assert len(list(late.news())) == journal.RECORDS
    assert late.lost == 0  # what was there before it came, nobody has lost


def test_a_record_that_is_not_all_there_is_not_read(tmp_path: Path):
    writer = Writer(tmp_path, ENGINE)
    reader = Reader(writer.path)
    writer.write(Record(Kind.STALL, 5, 6))
    place = journal._PAGE // 8 + 1
    writer._words[place] = 7  # as on a machine whose stores arrive in another order
    assert list(reader.news()) == []
    writer._words[place] = 5
    assert list(reader.news()) == [Record(Kind.STALL, 5, 6)]


def test_what_is_no_journal_is_refused(tmp_path: Path):
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "zeros").write_bytes(bytes(journal._SIZE))
    for name in ("short", "zeros", "none"):
        with pytest.raises((OSError, ValueError)):
            Reader(tmp_path / name)


def test_peers_come_go_and_belong_to_an_engine(tmp_path: Path):
    mine, other, stranger = Writer(tmp_path, ENGINE), Writer(tmp_path, ENGINE), Writer(tmp_path, ref("another"))
    peers = Peers(tmp_path, ENGINE, mine.path)
    for writer in (mine, other, stranger):
        writer.write(Record(Kind.STALL, 1, 2))
    assert list(peers.news()) == [Record(Kind.STALL, 1, 2)]
    late = Writer(tmp_path, ENGINE)
    late.write(Record(Kind.STALL, 3, 4))
    assert list(peers.news()) == [Record(Kind.STALL, 3, 4)]
    late.write(Record(Kind.STALL, 5, 6))
    late.path.unlink()
    assert list(peers.news()) == [Record(Kind.STALL, 5, 6)]  # its file is gone; what it wrote is not


def _stall_and_die(folder: Path, go: multiprocessing.synchronize.Event) -> None:
    writer = Writer(folder, ENGINE)
    writer.show_open(42, 7)
    go.wait()
    os._exit(1)


def test_a_process_that_died_in_a_cold_call_stalls_nobody_any_more(tmp_path: Path):
    spawn = multiprocessing.get_context("spawn")
    go = spawn.Event()
    process = spawn.Process(target=_stall_and_die, args=(tmp_path, go))
    process.start()
    try:
        mine = Writer(tmp_path, ENGINE)
        peers = Peers(tmp_path, ENGINE, mine.path)
        while not peers.open_stalls():
            assert process.is_alive()
            list(peers.news())
        assert peers.open_stalls() == [(42, 7)]
    finally:
        go.set()
        process.join()
    assert peers.open_stalls() == []
    sweep(tmp_path, older_than=-1)
    assert list(tmp_path.iterdir()) == [mine.path]  # the dead one's is gone, mine is in use


def test_what_was_left_by_a_birth_that_a_kill_cut_short_goes(tmp_path: Path):
    mine = Writer(tmp_path, ENGINE)
    old, new = tmp_path / f".{'0' * 32}{SUFFIX}.new", tmp_path / f".{'1' * 32}{SUFFIX}.new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {mine.path, new}


def test_of_many_that_died_the_newest_stay_for_who_has_not_read_them(tmp_path: Path):
    """A server that forks a child for each job: each end of a step asks every journal that is there."""
    mine = Writer(tmp_path, ENGINE)
    written = []
    for i in range(2 * journal.DEAD):
        silent, one = Writer(tmp_path, ENGINE), Writer(tmp_path, ENGINE)
        one.write(Record(Kind.STALL, i, i + 1))
        for path in (silent.path, one.path):
            os.utime(path, (time.time() - 100 + i,) * 2)
        written.append(one.path)
        silent.close()
        one.close()
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {mine.path, *written[journal.DEAD :]}
    news = list(Peers(tmp_path, ENGINE, mine.path).news())
    assert sorted(record.start for record in news) == list(range(journal.DEAD, 2 * journal.DEAD))


def test_who_sweeps_is_in_nobodys_way_who_is_being_born(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ranks start at the same time: each sweeps, while the files of others are there and not locked yet."""
    plain = fcntl.flock

    def others_sweep_first(handle: int, how: int) -> None:
        asked: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", lambda handle, how: asked.append(handle))
            sweep(tmp_path)
        assert asked == []
        plain(handle, how)

    monkeypatch.setattr(fcntl, "flock", others_sweep_first)
    assert Writer(tmp_path, ENGINE).path.exists()
