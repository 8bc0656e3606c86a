"""Forks of a process whose ledger is a file: cells go on, children count apart, and it is known who lives."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

from tests.ledger.scrape import finished, histogram, in_child, program, values
from tritonprobe.ledger import DirectoryReader, FileLedger, schema
from tritonprobe.ledger.directory import is_locked

K = ("k", "all")


def test_a_forked_child_counts_apart_through_the_cells_it_was_given(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    cell = ledger.cell(schema.LAUNCHES, K)
    cell[0] += 5
    ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.5)
    ledger.set(schema.VARIANTS, ("k",), 3)
    ledger.set(schema.COLD_IN_PROGRESS, ("0",), 1790000000.0)
    assert values(ledger, schema.LOOKUPS) == {(*K, "memory"): 4}
    parents = ledger.path

    def child() -> None:
        assert ledger.path is not None
        assert ledger.path != parents
        assert cell[0] == 0
        assert values(ledger, schema.VARIANTS) == {}
        assert values(DirectoryReader(tmp_path), schema.COLD_IN_PROGRESS) == {("0",): 1790000000.0}
        cell[0] += 1
        ledger.set(schema.VARIANTS, ("k",), 1)
        assert values(ledger, schema.LOOKUPS) == {(*K, "memory"): 1}
        cell[0] += 9
        ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 0.25)
        ledger.add(schema.LAUNCHES, ("born in the child", "all"))
        assert values(ledger, schema.LAUNCHES) == {K: 10, ("born in the child", "all"): 1}
        assert in_child(grandchild) == 0

    def grandchild() -> None:
        assert cell[0] == 0
        cell[0] += 100

    assert in_child(child) == 0
    assert ledger.path == parents
    assert values(ledger, schema.LAUNCHES) == {K: 5}
    reader = DirectoryReader(tmp_path)
    assert values(reader, schema.LAUNCHES) == {K: 115, ("born in the child", "all"): 1}
    assert histogram(reader, schema.COLD_CALL_SECONDS, "compile").sum == 0.75
    assert values(reader, schema.VARIANTS) == {("k",): 3}
    assert len(list(tmp_path.glob("*.tpl"))) == 3


def test_forks_amid_counting_threads_take_nothing_from_the_parent(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    cell = ledger.cell(schema.LAUNCHES, K)
    stop = threading.Event()
    counted = [0] * 4

    def work(i: int) -> None:
        while not stop.is_set():
            for _ in range(100):
                cell[0] += 1
            ledger.add(schema.WARMUPS, ("k", f"{i}:{counted[i] % 500}"))  # new series while children are born
            counted[i] += 1

    def child() -> None:
        for _ in range(1000):
            cell[0] += 1
        ledger.add(schema.TRIALS, K)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(20):
            assert in_child(child) == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    mine, reader = sum(counted), DirectoryReader(tmp_path)
    assert values(ledger, schema.LAUNCHES) == {K: 100 * mine}
    assert values(reader, schema.LAUNCHES) == {K: 100 * mine + 20 * 1000}
    assert sum(values(reader, schema.WARMUPS).values()) == mine
    assert values(reader, schema.TRIALS) == {K: 20}
    assert reader.problems == {}


def test_a_dead_parent_is_dead_while_its_forked_child_lives(tmp_path: Path) -> None:
    parent = program(
        """
ledger = FileLedger(Path(sys.argv[1]))
cell = ledger.cell(schema.LAUNCHES, K)
cell[0] += 1
if os.fork() == 0:
    cell[0] += 1
    os.write(1, b"%s\\n" % os.fsencode(ledger.path))
    sys.stdin.read()
    os._exit(0)
os.write(1, b"%s\\n" % os.fsencode(ledger.path))
time.sleep(60)
""",
        tmp_path,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    paths = {Path(parent.stdout.readline().strip()) for _ in range(2)}
    parent.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    assert sorted(map(is_locked, paths)) == [False, True]
    assert values(DirectoryReader(tmp_path), schema.LAUNCHES) == {K: 2}
    parent.communicate()


def test_a_daemon_that_closes_every_descriptor_stays_alive_and_closes_nobody_elses(tmp_path: Path) -> None:
    out, _ = finished(
        """
import socket
from tritonprobe.ledger.directory import is_locked
ledger = FileLedger(Path(sys.argv[1]))
cell = ledger.cell(schema.LAUNCHES, K)
before = os.dup(0); os.close(before)
os.closerange(3, 256)
theirs = [socket.socketpair() for _ in range(4)]  # one of them has the number that the ledger's file had
cell[0] += 1
if os.fork() == 0:
    cell[0] += 1
    for a, b in theirs:
        a.send(b"x"); assert b.recv(1) == b"x"
    os._exit(0)
assert os.wait()[1] == 0
print([s.value for f in DirectoryReader(Path(sys.argv[1])).collect() for s in f.samples if f.metric is schema.LAUNCHES])
print(is_locked(ledger.path))
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert lines[0] == "[2.0]"
    # The mapping itself holds the lock, but on an overlay, whose files are not the ones that are mapped.
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, check=True).stdout != b"overlayfs\n":
        assert lines[1] == "True"
