"""A ledger in a file: the same numbers as one in memory, exact over threads, processes, kill -9 and interruptions."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.scrape import at_line, everything, finished, histogram, in_child, program, values
from tritonprobe.ledger import DirectoryReader, FileLedger, MemoryLedger, file, schema
from tritonprobe.ledger.directory import is_locked
from tritonprobe.model import TIERS

K = ("k", "all")


def test_what_a_cell_counts_is_in_the_file(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    assert ledger.reason is None
    cell = ledger.cell(schema.LAUNCHES, K)
    cell[0] += 1
    cell[0] += 1
    out, _ = finished("print(*[s for f in DirectoryReader(Path(sys.argv[1])).collect() for s in f.samples])", tmp_path)
    assert "Sample(labels=('k', 'all'), value=2.0)" in out
    assert ledger.path is not None
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.path.stat().st_blocks * 512 >= ledger.path.stat().st_size == 2 << 20  # no holes


def test_what_the_schema_creates_is_there_at_once(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    present = {family.metric for family in DirectoryReader(tmp_path).collect()}
    assert present == {metric for metric in schema.METRICS if metric.created}
    assert values(DirectoryReader(tmp_path), schema.AFTER_READY) == {(tier,): 0 for tier in TIERS}
    assert everything(ledger) == everything(DirectoryReader(tmp_path))


names = st.sampled_from(["a", "b", "c\udc80", "é" * 300])
amounts = st.floats(0, 1e6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([schema.LAUNCHES, schema.WARMUPS]), names, amounts),
        st.tuples(st.just("add"), st.just(schema.STARTUP_COLD), names, amounts),
        st.tuples(st.just("set"), st.just(schema.VARIANTS), names, st.none() | amounts),
        st.tuples(st.just("set"), st.just(schema.COLD_IN_PROGRESS), st.just("rank 0"), st.none() | amounts),
        st.tuples(st.just("observe"), st.sampled_from([schema.TTFT, schema.COLD_CALL_SECONDS]), names, amounts),
        st.tuples(st.just("look"), st.just(schema.LOOKUPS), names, st.just(1.0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(history=steps)
def test_it_says_what_a_ledger_in_memory_says(
    history: list[tuple[str, schema.Metric, str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("ledger")
    in_file, in_memory, reader = FileLedger(tmp_path, size=1 << 17), MemoryLedger(), DirectoryReader(tmp_path)
    for ledger in (in_file, in_memory):
        for what, metric, name, amount in history:
            labels = (name, *["all", "compile"][: len(metric.labels) - 1])
            if what == "set":
                ledger.set(metric, labels, amount)
            elif what == "observe":
                ledger.observe(metric, labels, amount)
            else:
                ledger.add(metric, labels, amount)
    assert everything(in_file) == everything(in_memory) == everything(reader)
    assert reader.problems == {}


def test_a_gauge_taken_away_is_absent_and_comes_back(tmp_path: Path) -> None:
    ledger, reader = FileLedger(tmp_path), DirectoryReader(tmp_path)
    for value in (3.0, None, 4.0, None, 5.0):
        ledger.set(schema.VARIANTS, ("k",), value)
        expected = {} if value is None else {("k",): value}
        assert values(ledger, schema.VARIANTS) == values(reader, schema.VARIANTS) == expected


def test_eight_threads_lose_no_count(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    each, threads = 50_000, 8
    start = threading.Barrier(threads)
    cell = ledger.cell(schema.LAUNCHES, K)
    before = sys.getswitchinterval()

    def work() -> None:
        start.wait()
        for i in range(each):
            cell[0] += 1
            if i % 10 == 0:
                ledger.add(schema.ERRORS, (f"part{i % 7}",))
                ledger.cell(schema.WARMUPS, ("k", f"b{i % 500}"))[0] += 1

    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    for readable in (ledger, DirectoryReader(tmp_path)):
        assert values(readable, schema.LAUNCHES) == {K: threads * each}
        assert sum(values(readable, schema.ERRORS).values()) == threads * each / 10
        assert sum(values(readable, schema.WARMUPS).values()) == threads * each / 10


COUNT = """
ledger = FileLedger(Path(sys.argv[1]))
cell = ledger.cell(schema.LAUNCHES, K)
def work():
    for _ in range(int(sys.argv[3])):
        cell[0] += 1
workers = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
print("ready", flush=True); sys.stdin.readline()
for w in workers: w.start()
for w in workers: w.join()
"""


def test_eight_processes_of_eight_threads_count_to_ten_million(tmp_path: Path) -> None:
    counting = [program(COUNT, tmp_path, "8", "156250") for _ in range(8)]
    for one in counting:
        assert one.stdout is not None
        assert one.stdin is not None
        assert one.stdout.readline() == "ready\n"
    for one in counting:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    reader = DirectoryReader(tmp_path)
    seen = [0.0]
    while any(one.poll() is None for one in counting):
        seen.append(values(reader, schema.LAUNCHES)[K])
    for one in counting:
        assert one.communicate()[1] == ""
    assert seen == sorted(seen)
    assert values(reader, schema.LAUNCHES) == values(DirectoryReader(tmp_path), schema.LAUNCHES) == {K: 10_000_000}


def test_a_killed_process_has_counted_what_it_said(tmp_path: Path) -> None:
    counting = program(
        """
ledger = FileLedger(Path(sys.argv[1]))
cell = ledger.cell(schema.LAUNCHES, K)
ledger.set(schema.VARIANTS, ("k",), 2)
said = 0
while True:
    for _ in range(100): cell[0] += 1
    said += 100
    os.write(1, said.to_bytes(8, "little"))
""",
        tmp_path,
    )
    assert counting.stdout is not None
    pipe = counting.stdout.fileno()
    told = os.read(pipe, 8 * 1000)
    reader = DirectoryReader(tmp_path)
    assert values(reader, schema.VARIANTS) == {("k",): 2}
    counting.send_signal(signal.SIGKILL)
    counting.wait()
    while more := os.read(pipe, 1 << 16):
        told += more
    assert len(told) % 8 == 0
    said = int.from_bytes(told[-8:], "little")
    found = values(reader, schema.LAUNCHES)[K]
    assert said <= found <= said + 100
    assert values(reader, schema.LAUNCHES)[K] == found
    assert values(reader, schema.VARIANTS) == {}  # of a dead process nothing is measured now


def test_a_stopped_process_is_read_and_is_alive(tmp_path: Path) -> None:
    counting = program(COUNT, tmp_path, "1", "10")
    assert counting.stdout is not None
    counting.stdout.readline()
    counting.send_signal(signal.SIGSTOP)
    try:
        assert values(DirectoryReader(tmp_path), schema.LAUNCHES) == {K: 0}
        (file,) = tmp_path.glob("*.tpl")
        assert is_locked(file)
    finally:
        counting.kill()
        counting.communicate()
    assert not is_locked(file)


@pytest.mark.parametrize("what", ["count", "fork"])
def test_whatever_runs_in_the_middle_of_a_new_series_loses_and_spoils_nothing(what: str, tmp_path: Path) -> None:
    """Finalizers and signal handlers run between any two lines, and so may another thread that forks."""
    ledger = FileLedger(tmp_path)
    cell = ledger.cell(schema.LAUNCHES, K)

    def count() -> None:
        cell[0] += 1
        ledger.add(schema.TRIALS, ("k", f"{step}"))

    def new_series() -> None:
        ledger.add(schema.WARMUPS, ("k", f"{step}"))
        ledger.set(schema.VARIANTS, ("k",), 1)

    interrupt = count if what == "count" else lambda: in_child(count)
    interrupted = step = 0
    while at_line(step, file, interrupt, new_series):
        interrupted += 1
        step += 1
        ledger.set(schema.VARIANTS, ("k",), None)
    reader = DirectoryReader(tmp_path)
    assert interrupted > 15
    assert values(reader, schema.LAUNCHES)[K] == interrupted
    assert len(values(reader, schema.TRIALS)) == sum(values(reader, schema.TRIALS).values()) == interrupted
    assert len(values(reader, schema.WARMUPS)) == sum(values(reader, schema.WARMUPS).values()) == step + 1
    assert values(reader, schema.VARIANTS) == {("k",): 1}
    assert reader.problems == {}


def test_a_full_file_sends_series_to_other_and_counts_them(tmp_path: Path) -> None:
    ledger, launches = FileLedger(tmp_path, size=1 << 16), 3000
    for i in range(launches):
        ledger.cell(schema.LAUNCHES, (f"kernel_{i}", "all"))[0] += 1
    ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 2.0)
    reader = DirectoryReader(tmp_path)
    found = values(reader, schema.LAUNCHES)
    assert 100 < len(found) < launches
    assert sum(found.values()) == launches
    assert values(reader, schema.SERIES_DROPPED) == {
        ("launches_total",): launches - len(found) + 1,
        ("cold_seconds_total",): 1,
    }
    assert values(reader, schema.COLD_SECONDS) == {("other", "ptx", "0"): 2.0}
    assert everything(ledger) == everything(reader)


def test_what_has_no_place_at_all_is_counted_for_this_process_alone(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path, size=1 << 13)  # not even what the schema creates fits
    last = ("after_first_token", "queued")
    ledger.observe(schema.EXPOSURE, last, 0.5)
    assert histogram(ledger, schema.EXPOSURE, *last).sum == 0.5
    assert histogram(DirectoryReader(tmp_path), schema.EXPOSURE, *last).sum == 0

    def child() -> None:
        assert histogram(ledger, schema.EXPOSURE, *last).sum == 0

    assert in_child(child) == 0
    assert histogram(ledger, schema.EXPOSURE, *last).sum == 0.5


def test_a_larger_budget_has_a_larger_file(tmp_path: Path) -> None:
    out, _ = finished("print(open_ledger(sys.argv[1], 25_000).path.stat().st_size)", tmp_path / "ledger")
    assert int(out) == 3 * (2 << 20)
