"""Exemplars: the traced observation of each histogram that is worth most, through files, deaths, folds and forks."""

from __future__ import annotations

import functools
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.scrape import SMALL, histogram, in_child, program
from tritonprobe.ledger import DirectoryReader, Exemplar, FileLedger, Ledger, MemoryLedger, Readable, Traced, schema
from tritonprobe.ledger.fold import fold
from tritonprobe.ledger.layout import PAGE, pack_exemplar
from tritonprobe.ledger.store import worth_keeping

M = ("m",)


def exemplar(number: int) -> Exemplar:
    return Exemplar(f"{number:032x}", f"{number + 1:016x}")


def traced(ledger: Readable, labels: tuple[str, ...] = M) -> Traced | None:
    """The exemplar of the time to the first token."""
    return histogram(ledger, schema.TTFT, *labels).traced


def seen(ledger: Readable, labels: tuple[str, ...] = M) -> tuple[float, Exemplar] | None:
    found = traced(ledger, labels)
    return None if found is None else (found.value, found.exemplar)


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return MemoryLedger() if request.param == "memory" else FileLedger(tmp_path, size=SMALL)


def test_the_slow_one_is_kept_with_its_value_and_time_whatever_comes_after_it(ledger: Ledger) -> None:
    before = time.time_ns()
    for number, seconds in enumerate((0.3, 20.0, 0.02), 1):
        ledger.observe(schema.TTFT, M, seconds, exemplar(number))
    ledger.observe(schema.TTFT, M, 50.0)  # of a request that nobody traced
    found = traced(ledger)
    assert found is not None
    assert (found.value, found.exemplar) == (20.0, exemplar(2))
    assert before <= found.unix_ns <= time.time_ns()
    assert sum(histogram(ledger, schema.TTFT, *M).counts) == 4


def test_a_slow_one_fades_the_later_the_slower_it_was() -> None:
    for after, kept in ((1, 4.0), (60, 4.0), (103, 4.0), (104, 0.004)):  # 15 s for each factor of e, 6.9 of them
        found = worth_keeping(Traced(4.0, 0, exemplar(1)), Traced(0.004, after * 10**9, exemplar(2)))
        assert found is not None
        assert found.value == kept


OBSERVED = st.builds(Traced, st.floats(0, 1e4), st.integers(0, 10**12), st.integers(1, 9).map(exemplar))


@given(st.lists(OBSERVED, min_size=1, max_size=8), st.randoms())
def test_of_many_the_same_one_stays_in_any_order(observed: list[Traced], draw: random.Random) -> None:
    def kept() -> Traced | None:
        return functools.reduce(worth_keeping, observed, None)

    first = kept()
    draw.shuffle(observed)
    assert kept() == first
    assert max(observed, key=lambda each: (each.value, each.unix_ns)).value >= (first.value if first else 0)


def test_without_one_there_is_none(ledger: Ledger) -> None:
    ledger.observe(schema.TTFT, M, 0.5)
    assert traced(ledger) is None


def test_each_series_has_its_own_and_what_a_bound_turned_away_shares_that_of_other(ledger: Ledger) -> None:
    for i in range(schema.MODELS + 5):
        ledger.observe(schema.TTFT, (f"model-{i}",), 0.5, exemplar(i + 1))
    assert seen(ledger, ("model-3",)) == (0.5, exemplar(4))
    assert seen(ledger, ("other",)) == (0.5, exemplar(schema.MODELS + 5))


def test_a_value_that_is_refused_leaves_no_exemplar(ledger: Ledger) -> None:
    ledger.observe(schema.TTFT, M, 0.5)
    with pytest.raises(ValueError, match="its sum would fall"):
        ledger.observe(schema.TTFT, M, -1.0, exemplar(1))
    assert traced(ledger) is None


def test_another_process_reads_it(tmp_path: Path) -> None:
    counting = program(
        """
from tritonprobe.ledger import Exemplar
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
ledger.observe(schema.TTFT, ("m",), 0.25, Exemplar("ab" * 16, "cd" * 8))
print("done", flush=True); sys.stdin.read()
""",
        tmp_path,
    )
    reader = DirectoryReader(tmp_path)
    try:
        assert counting.stdout is not None
        assert counting.stdout.readline() == "done\n"
        assert seen(reader) == (0.25, Exemplar("ab" * 16, "cd" * 8))
    finally:
        counting.kill()
        counting.communicate()
    assert seen(reader) == seen(DirectoryReader(tmp_path)) == (0.25, Exemplar("ab" * 16, "cd" * 8))  # dead, not gone


def test_a_reader_beside_a_fast_writer_sees_whole_ones_only(tmp_path: Path) -> None:
    """Each exemplar's value, trace and span say one number: what mixes two of them would show."""
    writing = program(
        """
from tritonprobe.ledger import Exemplar
ledger = FileLedger(Path(sys.argv[1]), size=1 << 16)
kept = [(1 + i / 1e9, Exemplar(f"{i:032x}", f"{i:016x}")) for i in range(1, 200)]
ledger.observe(schema.TTFT, ("m",), *kept[0])
print("ready", flush=True)
while True:
    for value, exemplar in kept:
        ledger.observe(schema.TTFT, ("m",), value, exemplar)
""",
        tmp_path,
    )
    reader = DirectoryReader(tmp_path)
    found: set[float] = set()
    try:
        assert writing.stdout is not None
        writing.stdout.readline()
        deadline = time.monotonic() + 20
        while len(found) < 50 and time.monotonic() < deadline:
            one = traced(reader)
            if one is not None:  # else it was just being written
                number = round((one.value - 1) * 1e9)
                assert one.exemplar == Exemplar(f"{number:032x}", f"{number:016x}")
                found.add(one.value)
    finally:
        writing.send_signal(signal.SIGKILL)
        writing.communicate()
    assert len(found) == 50
    assert reader.problems == {}


def test_one_half_written_is_omitted_and_nothing_else_is(tmp_path: Path) -> None:
    ledger, reader = FileLedger(tmp_path, size=SMALL), DirectoryReader(tmp_path)
    ledger.observe(schema.TTFT, M, 0.5, exemplar(1))
    whole = traced(reader)
    assert whole is not None
    assert ledger.path is not None
    at = ledger.path.read_bytes().index(pack_exemplar(whole))
    assert at >= PAGE
    with ledger.path.open("r+b") as file:
        file.seek(at)
        file.write(pack_exemplar(Traced(7.0, whole.unix_ns + 1, exemplar(2)))[:24])  # as far as a writer had come
    assert traced(reader) is None
    assert histogram(reader, schema.TTFT, *M).sum == 0.5
    assert reader.problems == {}
    ledger.observe(schema.TTFT, M, 0.7, exemplar(3))
    assert seen(reader) == (0.7, exemplar(3))


def test_of_several_processes_one_is_shown_whoever_lives(tmp_path: Path) -> None:
    first, second = (FileLedger(tmp_path, size=SMALL) for _ in range(2))
    reader = DirectoryReader(tmp_path)
    first.observe(schema.TTFT, M, 0.1, exemplar(1))
    assert seen(reader) == (0.1, exemplar(1))
    second.observe(schema.TTFT, M, 0.2, exemplar(2))
    assert seen(reader) == (0.2, exemplar(2))
    del second
    assert seen(reader) == (0.2, exemplar(2))
    first.observe(schema.TTFT, M, 0.3, exemplar(3))
    assert seen(reader) == (0.3, exemplar(3))


def dies_traced(folder: Path, seconds: float, number: int) -> None:
    FileLedger(folder, size=SMALL).observe(schema.TTFT, M, seconds, exemplar(number))


def test_a_fold_keeps_it_and_so_does_the_next_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        dies_traced(tmp_path, number / 10, number)
    stays = DirectoryReader(tmp_path)
    assert seen(stays) == (0.3, exemplar(3))
    assert fold(tmp_path, above=0) == 3
    assert seen(stays) == seen(DirectoryReader(tmp_path)) == (0.3, exemplar(3))
    FileLedger(tmp_path, size=SMALL).observe(schema.TTFT, M, 0.9)  # traced by nobody
    assert fold(tmp_path, above=0) == 1
    assert seen(stays) == seen(DirectoryReader(tmp_path)) == (0.3, exemplar(3))
    dies_traced(tmp_path, 0.4, 4)
    assert fold(tmp_path, above=0) == 1
    assert seen(stays) == seen(DirectoryReader(tmp_path)) == (0.4, exemplar(4))


def test_in_a_readers_other_one_of_those_it_turned_away_is_shown(tmp_path: Path) -> None:
    ledgers = [FileLedger(tmp_path, size=1 << 18) for _ in range(2)]
    for i in range(2 * schema.MODELS):
        ledgers[i % 2].observe(schema.TTFT, (f"model-{i:02d}",), 0.5, exemplar(i + 1))
    reader = DirectoryReader(tmp_path)
    # Whose models all fit is a matter of their files' names.
    assert seen(reader, ("other",)) in [(0.5, exemplar(2 * schema.MODELS - one)) for one in (0, 1)]
    ledgers[0].observe(schema.TTFT, ("yet another",), 0.6, exemplar(1000))
    assert seen(reader, ("other",)) == (0.6, exemplar(1000))
    ledgers[1].observe(schema.TTFT, ("and one more",), 0.7, exemplar(2000))
    assert seen(reader, ("other",)) == (0.7, exemplar(2000))


def test_a_forked_child_has_none_until_it_observes_and_leaves_its_parents_alone(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path, size=SMALL)
    ledger.observe(schema.TTFT, M, 0.1, exemplar(1))

    def child() -> None:
        assert traced(ledger) is None
        ledger.observe(schema.TTFT, M, 0.2, exemplar(2))
        assert seen(ledger) == (0.2, exemplar(2))

    assert in_child(child) == 0
    assert seen(ledger) == (0.1, exemplar(1))
    assert seen(DirectoryReader(tmp_path)) == (0.2, exemplar(2))


def test_where_a_file_has_no_place_for_a_series_its_process_alone_keeps_the_exemplar(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path, size=1 << 13)
    last = schema.EXPOSURE.created[-1]
    ledger.observe(schema.EXPOSURE, last, 0.5, exemplar(1))
    found = histogram(ledger, schema.EXPOSURE, *last).traced
    assert found is not None
    assert found.exemplar == exemplar(1)
    assert histogram(DirectoryReader(tmp_path), schema.EXPOSURE, *last).traced is None


def test_what_is_read_with_an_exemplar_has_counted_it(tmp_path: Path) -> None:
    """A reader copies in the order of addresses, so it never shows an exemplar on a bucket that is still empty."""
    writing = program(
        """
from tritonprobe.ledger import Exemplar
ledger = FileLedger(Path(sys.argv[1]), size=1 << 20)
print("ready", flush=True)
for i in range(1, 100_000):
    ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.0, Exemplar(f"{i:032x}", f"{i:016x}"))
""",
        tmp_path,
    )
    reader = DirectoryReader(tmp_path)
    try:
        assert writing.stdout is not None
        writing.stdout.readline()
        seen_some = 0
        while writing.poll() is None and seen_some < 300:
            sample = histogram(reader, schema.COLD_CALL_SECONDS, "compile")
            if sample.traced is not None:
                seen_some += 1
                assert sample.counts[0] >= int(sample.traced.exemplar.trace_id, 16)
    finally:
        writing.kill()
        writing.communicate()
    assert seen_some > 20


def test_an_observation_without_one_takes_no_lock(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path, size=SMALL)
    ledger.observe(schema.TTFT, M, 0.5)

    class Forbidden:
        def __enter__(self) -> None:
            raise AssertionError("a lock was taken")

        def __exit__(self, *_: object) -> None:
            pass

    ledger._lock, lock = Forbidden(), ledger._lock  # type: ignore[assignment]
    try:
        ledger.observe(schema.TTFT, M, 0.5)
    finally:
        ledger._lock = lock
    assert sum(histogram(ledger, schema.TTFT, *M).counts) == 2
