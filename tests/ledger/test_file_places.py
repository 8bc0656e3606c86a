"""Where a ledger's file can be made, the program that runs on where it cannot, and directories at programs' ends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.ledger.scrape import finished, in_child, program, values
from tritonprobe.ledger import DirectoryReader, FileLedger, schema
from tritonprobe.ledger.fold import fold

K = ("k", "all")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system or become someone else")


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


@as_root
def test_on_a_full_file_system_the_program_runs_on(small_tmpfs: Path) -> None:
    runs_on("no ledger file of 2 MiB can be made there (No space left on device)", small_tmpfs)
    assert list(small_tmpfs.iterdir()) == []


@as_root
@pytest.mark.parametrize("beside", [0, 1 << 15])  # four files of 256 KiB are 1 MiB, which leaves no room for their sums
def test_where_only_the_dead_take_the_room_they_make_it(beside: int, small_tmpfs: Path) -> None:
    """A container's /dev/shm holds fewer files than are left to lie about."""
    (small_tmpfs / "census").write_bytes(bytes(beside))
    for _ in range(3):
        started = [program(COUNTS_ONE, small_tmpfs) for _ in range(3)]  # who starts at once, waits for who makes room
        for each in started:
            assert each.communicate(timeout=60) == ("None\n", "")
    assert values(DirectoryReader(small_tmpfs), schema.LAUNCHES) == {K: 9.0}
    assert values(DirectoryReader(small_tmpfs), schema.ERRORS) == {}


COUNTS_ONE = """
ledger = FileLedger(Path(sys.argv[1]), size=1 << 18)  # three in 1 MiB
ledger.add(schema.LAUNCHES, K)
print(ledger.reason, flush=True)
"""


@as_root
def test_half_a_base_takes_no_room_of_a_full_file_system(small_tmpfs: Path) -> None:
    ledger = FileLedger(small_tmpfs, size=1 << 19)
    for kernel in range(400):
        ledger.add(schema.LAUNCHES, (f"{kernel}" * 20, "all"))
    ledger.close()
    with (small_tmpfs / "hog").open("wb") as hog, pytest.raises(OSError, match="No space left"):
        hog.write(bytes(1 << 20))
    with pytest.raises(OSError, match="No space left"):
        fold(small_tmpfs, above=0)
    assert not (small_tmpfs / ".base.new").exists()


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


def test_a_child_that_finds_no_directory_runs_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    ledger = FileLedger(place)
    cell = ledger.cell(schema.LAUNCHES, K)
    place.rename(tmp_path / "moved")

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
