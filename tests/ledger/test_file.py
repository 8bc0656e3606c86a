"""A ledger in a file: exact over threads, processes, forks and kill -9; and a program that runs on without a file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.scrape import at_line, everything, finished, histogram, program, values
from tritonprobe.ledger import DirectoryReader, FileLedger, MemoryLedger, file, schema
from tritonprobe.ledger.directory import is_locked
from tritonprobe.model import TIERS

K = ("k", "all")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system or become someone else")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def in_child(work: object) -> int:
    """Runs `work` in a forked child, without what pytest would do at its end. Returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_what_a_cell_counts_is_in_the_file(folder: Path) -> None:
    ledger = FileLedger(folder)
    assert ledger.reason is None
    cell = ledger.cell(schema.LAUNCHES, K)
    cell[0] += 1
    cell[0] += 1
    out, _ = finished("print(*[s for f in DirectoryReader(Path(sys.argv[1])).collect() for s in f.samples])", folder)
    assert "Sample(labels=('k', 'all'), value=2.0)" in out
    assert ledger.path is not None
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert ledger.path.stat().st_blocks * 512 >= ledger.path.stat().st_size == 2 << 20  # no holes


def test_what_the_schema_creates_is_there_at_once(folder: Path) -> None:
    ledger = FileLedger(folder)
    present = {family.metric for family in DirectoryReader(folder).collect()}
    assert present == {metric for metric in schema.METRICS if metric.created}
    assert values(DirectoryReader(folder), schema.AFTER_READY) == {(tier,): 0 for tier in TIERS}
    assert everything(ledger) == everything(DirectoryReader(folder))


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
    folder = tmp_path_factory.mktemp("ledger")
    in_file, in_memory, reader = FileLedger(folder, size=1 << 17), MemoryLedger(), DirectoryReader(folder)
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


def test_a_gauge_taken_away_is_absent_and_comes_back(folder: Path) -> None:
    ledger, reader = FileLedger(folder), DirectoryReader(folder)
    for value in (3.0, None, 4.0, None, 5.0):
        ledger.set(schema.VARIANTS, ("k",), value)
        expected = {} if value is None else {("k",): value}
        assert values(ledger, schema.VARIANTS) == values(reader, schema.VARIANTS) == expected


def test_eight_threads_lose_no_count(folder: Path) -> None:
    ledger = FileLedger(folder)
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
    for readable in (ledger, DirectoryReader(folder)):
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


def test_eight_processes_of_eight_threads_count_to_ten_million(folder: Path) -> None:
    counting = [program(COUNT, folder, "8", "156250") for _ in range(8)]
    for one in counting:
        assert one.stdout is not None
        assert one.stdin is not None
        assert one.stdout.readline() == "ready\n"
    for one in counting:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    reader = DirectoryReader(folder)
    seen = [0.0]
    while any(one.poll() is None for one in counting):
        seen.append(values(reader, schema.LAUNCHES)[K])
    for one in counting:
        assert one.communicate()[1] == ""
    assert seen == sorted(seen)
    assert values(reader, schema.LAUNCHES) == values(DirectoryReader(folder), schema.LAUNCHES) == {K: 10_000_000}


def test_a_killed_process_has_counted_what_it_said(folder: Path) -> None:
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
        folder,
    )
    assert counting.stdout is not None
    pipe = counting.stdout.fileno()
    told = os.read(pipe, 8 * 1000)
    reader = DirectoryReader(folder)
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


def test_a_stopped_process_is_read_and_is_alive(folder: Path) -> None:
    counting = program(COUNT, folder, "1", "10")
    assert counting.stdout is not None
    counting.stdout.readline()
    counting.send_signal(signal.SIGSTOP)
    try:
        assert values(DirectoryReader(folder), schema.LAUNCHES) == {K: 0}
        (file,) = folder.glob("*.tpl")
        assert is_locked(file)
    finally:
        counting.kill()
        counting.communicate()
    assert not is_locked(file)


def test_a_forked_child_counts_apart_through_the_cells_it_was_given(folder: Path) -> None:
    ledger = FileLedger(folder)
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
        assert values(DirectoryReader(folder), schema.COLD_IN_PROGRESS) == {("0",): 1790000000.0}
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
    reader = DirectoryReader(folder)
    assert values(reader, schema.LAUNCHES) == {K: 115, ("born in the child", "all"): 1}
    assert histogram(reader, schema.COLD_CALL_SECONDS, "compile").sum == 0.75
    assert values(reader, schema.VARIANTS) == {("k",): 3}
    assert len(list(folder.glob("*.tpl"))) == 3


def test_forks_amid_counting_threads_take_nothing_from_the_parent(folder: Path) -> None:
    ledger = FileLedger(folder)
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
    mine, reader = sum(counted), DirectoryReader(folder)
    assert values(ledger, schema.LAUNCHES) == {K: 100 * mine}
    assert values(reader, schema.LAUNCHES) == {K: 100 * mine + 20 * 1000}
    assert sum(values(reader, schema.WARMUPS).values()) == mine
    assert values(reader, schema.TRIALS) == {K: 20}
    assert reader.problems == {}


def test_a_dead_parent_is_dead_while_its_forked_child_lives(folder: Path) -> None:
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
        folder,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    paths = {Path(parent.stdout.readline().strip()) for _ in range(2)}
    parent.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    assert sorted(map(is_locked, paths)) == [False, True]
    assert values(DirectoryReader(folder), schema.LAUNCHES) == {K: 2}
    parent.communicate()


def test_a_daemon_that_closes_every_descriptor_stays_alive_and_closes_nobody_elses(folder: Path) -> None:
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
        folder,
    )
    lines = out.splitlines()
    assert lines[0] == "[2.0]"
    # The mapping itself holds the lock, but on an overlay, whose files are not the ones that are mapped.
    if subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, check=True).stdout != b"overlayfs\n":
        assert lines[1] == "True"


@pytest.mark.parametrize("what", ["count", "fork"])
def test_whatever_runs_in_the_middle_of_a_new_series_loses_and_spoils_nothing(what: str, folder: Path) -> None:
    """Finalizers and signal handlers run between any two lines, and so may another thread that forks."""
    ledger = FileLedger(folder)
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
    reader = DirectoryReader(folder)
    assert interrupted > 15
    assert values(reader, schema.LAUNCHES)[K] == interrupted
    assert len(values(reader, schema.TRIALS)) == sum(values(reader, schema.TRIALS).values()) == interrupted
    assert len(values(reader, schema.WARMUPS)) == sum(values(reader, schema.WARMUPS).values()) == step + 1
    assert values(reader, schema.VARIANTS) == {("k",): 1}
    assert reader.problems == {}


def test_a_full_file_sends_series_to_other_and_counts_them(folder: Path) -> None:
    ledger, launches = FileLedger(folder, size=1 << 16), 3000
    for i in range(launches):
        ledger.cell(schema.LAUNCHES, (f"kernel_{i}", "all"))[0] += 1
    ledger.add(schema.COLD_SECONDS, ("k", "ptx", "0"), 2.0)
    reader = DirectoryReader(folder)
    found = values(reader, schema.LAUNCHES)
    assert 100 < len(found) < launches
    assert sum(found.values()) == launches
    assert values(reader, schema.SERIES_DROPPED) == {
        ("launches_total",): launches - len(found) + 1,
        ("cold_seconds_total",): 1,
    }
    assert values(reader, schema.COLD_SECONDS) == {("other", "ptx", "0"): 2.0}
    assert everything(ledger) == everything(reader)


def test_what_has_no_place_at_all_is_counted_for_this_process_alone(folder: Path) -> None:
    ledger = FileLedger(folder, size=1 << 13)  # not even what the schema creates fits
    last = ("after_first_token", "queued")
    ledger.observe(schema.EXPOSURE, last, 0.5)
    assert histogram(ledger, schema.EXPOSURE, *last).sum == 0.5
    assert histogram(DirectoryReader(folder), schema.EXPOSURE, *last).sum == 0

    def child() -> None:
        assert histogram(ledger, schema.EXPOSURE, *last).sum == 0

    assert in_child(child) == 0
    assert histogram(ledger, schema.EXPOSURE, *last).sum == 0.5


def test_a_larger_budget_has_a_larger_file(folder: Path) -> None:
    out, _ = finished("print(open_ledger(sys.argv[1], 25_000).path.stat().st_size)", folder / "ledger")
    assert int(out) == 3 * (2 << 20)


RUNS_ON = """
logging.basicConfig(format="%(message)s")
ledger = open_ledger(sys.argv[1] or None)
cell = ledger.cell(schema.LAUNCHES, K)
cell[0] += 1
if os.fork() == 0:
    assert cell[0] == 0
    os._exit(0)
assert os.wait()[1] == 0
found = {f.metric.name: [s.value for s in f.samples] for f in ledger.reading().collect() if f.metric.kind == "counter"}
print(json.dumps([str(ledger.path), ledger.reason, found["launches_total"], found.get("errors_total")]))
"""


def runs_on(reason: str, where: str | Path, uid: int | None = None) -> None:
    """A program without a ledger file runs on, says why once, and counts it."""
    change = "" if uid is None else f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
    out, err = finished(f"import json, logging\n{change}{RUNS_ON}", where)
    path, why, launches, errors = json.loads(out)
    assert path == "None"
    assert reason in why
    assert launches == [1.0]
    assert errors == [1.0]
    assert err.count("\n") == 1
    assert err.startswith("tritonprobe: counting in this process's memory, which no other process sees: ")
    assert why in err


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@as_root
def test_on_a_full_file_system_the_program_runs_on(small_tmpfs: Path) -> None:
    runs_on("no ledger file of 2 MiB can be made there (No space left on device)", small_tmpfs)
    assert list(small_tmpfs.iterdir()) == []


@as_root
def test_on_a_file_system_that_fills_up_no_count_is_a_crash(small_tmpfs: Path) -> None:
    ledger = FileLedger(small_tmpfs, size=1 << 19)
    assert ledger.path is not None
    with (small_tmpfs / "hog").open("wb") as hog, pytest.raises(OSError, match="No space left"):
        hog.write(bytes(1 << 20))
    assert os.statvfs(small_tmpfs).f_bavail == 0
    for i in range(2000):
        ledger.add(schema.LAUNCHES, (f"kernel_{i}", "all"))
    assert sum(values(DirectoryReader(small_tmpfs), schema.LAUNCHES).values()) == 2000


def test_in_a_read_only_directory_the_program_runs_on(tmp_path: Path) -> None:
    place = tmp_path / "read-only"
    place.mkdir()
    if os.geteuid() == 0:  # whom permissions do not stop
        for parent in (place, *place.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o711)
        os.chown(place, 65534, 65534)
    place.chmod(0o500)
    runs_on("can be made there (Permission denied)", place, 65534 if os.geteuid() == 0 else None)


@as_root
def test_in_someone_elses_directory_the_program_runs_on(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    runs_on("belongs to UID 12345, not to UID 0", tmp_path)


def test_at_a_planted_symbolic_link_the_program_runs_on(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to("theirs")
    runs_on("is a symbolic link, which someone else may have planted", tmp_path / "link")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_child_that_finds_no_directory_runs_on_and_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = folder / "ledger"
    place.mkdir()
    ledger = FileLedger(place)
    cell = ledger.cell(schema.LAUNCHES, K)
    place.rename(folder / "moved")

    def child() -> None:
        cell[0] += 1
        assert [record.message.count("counting in this process's memory") for record in caplog.records] == [1]
        assert ledger.path is None
        assert ledger.reason is not None
        assert "No such file or directory" in ledger.reason
        assert values(ledger, schema.LAUNCHES) == {K: 1}
        assert values(ledger, schema.ERRORS) == {("ledger",): 1}

    assert in_child(child) == 0
    assert cell[0] == 0


def without_directory() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRITONPROBE_DIR"}


SPAWNS = """
import subprocess
ledger = open_ledger()
ledger.add(schema.LAUNCHES, K)
started = subprocess.Popen(
    [sys.executable, "-c", "from tritonprobe.ledger import *\\nfrom tritonprobe.ledger import schema\\n"
     "import sys\\nledger = open_ledger()\\nledger.add(schema.LAUNCHES, ('k', 'all'), 10)\\nprint('up', flush=True)\\n"
     "sys.stdin.read()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert started.stdout.readline() == b"up\\n"
print([s.value for f in ledger.reading().collect() for s in f.samples if f.metric is schema.LAUNCHES], flush=True)
print(os.environ["TRITONPROBE_DIR"], ledger.path.parent, flush=True)
started.communicate()
if os.fork() == 0:
    sys.exit()  # runs its parent's exit handlers, too
os.wait()
assert ledger.path.exists()
"""


def test_programs_it_starts_count_with_it_and_its_directory_goes_at_its_end() -> None:
    out, _ = finished(SPAWNS, env=without_directory())
    counted, places = out.splitlines()
    assert counted == "[11.0]"
    named, used = map(Path, places.split(" "))
    assert named == used
    assert not named.exists()


def test_a_directory_others_still_count_in_stays() -> None:
    maker = program(
        """
ledger = open_ledger()
cell = ledger.cell(schema.LAUNCHES, K)
if os.fork() == 0:
    sys.stdin.readline()
    cell[0] += 1
    print("counted", flush=True)
    os._exit(0)
print(ledger.path.parent, flush=True)
""",
        env=without_directory(),
    )
    assert maker.stdout is not None
    place = Path(maker.stdout.readline().strip())
    maker.wait(timeout=60)
    try:
        assert maker.communicate("go\n")[0] == "counted\n"
        assert values(DirectoryReader(place), schema.LAUNCHES) == {K: 1}
    finally:
        shutil.rmtree(place)


def test_after_a_crash_a_childs_clean_exit_leaves_the_evidence() -> None:
    maker = program(
        """
import signal
ledger = open_ledger()
cell = ledger.cell(schema.LAUNCHES, K)
cell[0] += 1
if os.fork() == 0:
    os.write(1, os.fsencode(ledger.path.parent) + b"\\n")
    sys.stdin.readline()
    sys.exit()
signal.pause()
""",
        env=without_directory(),
    )
    assert maker.stdout is not None
    place = Path(maker.stdout.readline().strip())
    maker.kill()
    maker.communicate("go\n")
    try:
        assert values(DirectoryReader(place), schema.LAUNCHES) == {K: 1}
    finally:
        shutil.rmtree(place)
