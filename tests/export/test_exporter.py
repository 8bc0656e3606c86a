"""The exporter process: it answers whatever the programs do, once a directory, and refuses in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.export.exporters import exporter, get, refused, scrape, total, until
from tests.ledger.scrape import program
from tritonprobe.export.exporter import LOCK_NAME, check_exportable, exporting, is_counting
from tritonprobe.ledger import FileLedger, schema, signs
from tritonprobe.ledger.directory import DirectoryError
from tritonprobe.ledger.fold import fold
from tritonprobe.settings import Settings

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")

COUNTS = """
ledger = FileLedger(Path(sys.argv[1]))
ledger.cell(schema.LAUNCHES, K)[0] += 41
ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 1.5)
print("counted", flush=True)
"""
WAITS = COUNTS + "sys.stdin.readline()\n"
# A call through PyDLL keeps the interpreter lock, as the passes of a compiler do that never let go of it.
UNDER_THE_LOCK = COUNTS + "import ctypes; ctypes.PyDLL(None).sleep(600)\n"


def counting(code: str, folder: Path) -> subprocess.Popen[str]:
    """A program that has counted 41 launches."""
    process = program(code, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "counted\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("state", ["stopped", "under the lock", "killed"])
def test_a_program_that_cannot_answer_is_scraped_within_a_second(state: str, tmp_path: Path) -> None:
    running = counting(UNDER_THE_LOCK if state == "under the lock" else WAITS, tmp_path)
    try:
        with exporter(tmp_path) as up:
            if state == "stopped":
                running.send_signal(signal.SIGSTOP)
            elif state == "killed":
                killed(running)
            found = scrape(up.url, timeout=1.0)
            assert total(found, "tritonprobe_launches_total", kernel="k", bucket="all") == 41
            assert total(found, "tritonprobe_cold_call_seconds_sum", tier="compile") == 1.5
    finally:
        killed(running)


def test_processes_that_come_and_go_add_up(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        assert total(scrape(up.url), "tritonprobe_launches_total") == 0
        first, second = counting(WAITS, tmp_path), counting(WAITS, tmp_path)
        assert total(scrape(up.url), "tritonprobe_launches_total") == 82
        killed(first)
        third = counting(WAITS, tmp_path)
        assert total(scrape(up.url), "tritonprobe_launches_total") == 123
        killed(second)
        killed(third)
        assert total(scrape(up.url), "tritonprobe_launches_total") == 123


def test_ready_is_that_of_a_living_process(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    with exporter(tmp_path) as up:
        status, text = get(f"{up.url}/ready")
        assert (status, json.loads(text)) == (
            503,
            {"ready": False, "because": "tritonprobe.ready() was not called yet"},
        )
        ledger.set(schema.READY, (), 1_790_000_000.5)
        status, text = get(f"{up.url}/ready")
        assert (status, json.loads(text)["since_unix_seconds"]) == (200, 1_790_000_000.5)
        ledger.close()
        assert get(f"{up.url}/ready")[0] == 503


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        ("stopped", "the ready_timeout passed, or somebody stopped it, before prewarming was done"),
        ("no_device", "not prewarmed: no device was in use yet where tritonprobe.ready() was called"),
    ],
)
def test_ready_says_what_came_of_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, says: str
) -> None:
    monkeypatch.setenv("TRITONPROBE_PREWARM", "/a/census.json")
    ledger = FileLedger(tmp_path)
    with exporter(tmp_path) as up:

        def because() -> str:
            return str(json.loads(get(f"{up.url}/ready")[1])["because"])

        assert because() == "ready() comes after prewarming from /a/census.json"
        ledger.add(schema.PREWARMS, (outcome,))
        assert because() == "ready() comes after prewarming from /a/census.json"
        ledger.set(schema.READY, (), 1_790_000_000.5)
        assert because() == says
        ledger.add(schema.PREWARMS, ("done",))
        assert because() == "tritonprobe.ready() was called"
    ledger.close()


def test_not_ready_for_nobody_lives_there_is_said_so(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:

        def because() -> str:
            status, text = get(f"{up.url}/ready")
            assert status == 503
            return str(json.loads(text)["because"])

        assert because() == f"no process counts in {tmp_path} yet"
        running = counting(WAITS, tmp_path)
        assert because() == "tritonprobe.ready() was not called yet"
        killed(running)
        ended = f"no living process: those that counted in {tmp_path} have ended"
        assert because() == ended
        assert fold(tmp_path, above=0) == 1  # what is left of it is in the base
        assert because() == ended


def test_the_other_paths(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        status, text = get(f"{up.url}/")
        assert status == 200
        assert "/metrics" in text
        assert "/report" in text


def test_the_report_is_what_counts_tell_of_all_processes(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        empty = httpx.get(f"{up.url}/report").json()
        assert (empty["device"], empty["cold_calls"], empty["pairs"]) == ("no living process", 0, [])
        for _ in range(2):
            counting(COUNTS, tmp_path).wait()
        told = httpx.get(f"{up.url}/report").json()
        assert told["device"] == "no living process"
        assert (told["cold_calls"], told["cold_seconds"]) == (2, 3.0)
        assert [(pair["kernel"], pair["launches"]) for pair in told["pairs"]] == [("k", 82)]
        assert (told["dearest"], told["remedies"], told["ttft"]) == ([], [], None)
        assert any("stay in the probed process" in sentence for sentence in told["absent"])
        page = httpx.get(f"{up.url}/report", headers={"Accept": "text/html, */*;q=0.8"})
        assert page.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert "so far: 2 cold calls; 2 compiled" in page.text
        assert "TTFT" not in page.text, "nobody measured it here"


def test_it_needs_neither_torch_nor_triton() -> None:
    code = "import sys, tritonprobe.cli.serve; print({'torch', 'triton'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_well_when_asked_to(how: int, tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        assert up.end(how) == 0


def test_a_second_one_says_who_serves_the_directory(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        assert refused(tmp_path, "--port", 0) == (
            f"{tmp_path}: is served already, by process {up.process.pid} at {up.url}; "
            "one exporter a directory is enough"
        )
        assert get(f"{up.url}/metrics")[0] == 200
        up.end(signal.SIGKILL)
        with exporter(tmp_path) as next_one:
            assert f"process {next_one.process.pid} at " in refused(tmp_path, "--port", 0)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, "--port", port)
    assert said.startswith(f"port {port} on 127.0.0.1 is in use; choose a free one, or 0 for any (--port, ")


def test_an_address_that_is_not_ours_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "--port", 0, "--addr", "192.0.2.1").startswith("cannot listen on port 0 of 192.0.2.1 (")


def test_a_bad_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONPROBE_PORT", "high")
    assert refused(tmp_path) == "TRITONPROBE_PORT='high': expected a whole number from 0 to 65535"


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "missing") == f"{tmp_path / 'missing'}: No such file or directory"
    assert not (tmp_path / "missing").exists()


def test_a_file_and_a_link_are_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'}: is not a directory"
    (tmp_path / "link").symlink_to(tmp_path)
    assert "is a symbolic link" in refused(tmp_path / "link")


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    assert refused(tmp_path) == (
        f"{tmp_path}: has no ledger in it, but photo.jpg; name the directory of TRITONPROBE_DIR"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_directory_that_was_switched_off_before_anything_counted_there_is_one(tmp_path: Path) -> None:
    signs.ask(tmp_path, "off")
    check_exportable(tmp_path)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritonprobe.ledger.directory.file_system", lambda *_: "nfs4")
    with pytest.raises(DirectoryError, match=r"lies on a network file system \(nfs4\); name a local one"):
        check_exportable(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m,mode=0700"]
    mounted = subprocess.run(["mount", *options, "tmpfs", place], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@as_root
def test_someone_elses_directory_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    assert refused(tmp_path) == f"{tmp_path}: belongs to UID 12345, not to UID 0; export it as its owner"


def test_a_file_that_is_no_ledger_is_told_of_and_the_others_are_shown(tmp_path: Path) -> None:
    killed(counting(WAITS, tmp_path))
    (tmp_path / "foreign.tpl").write_bytes(bytes(8192))
    with exporter(tmp_path) as up:
        found = scrape(up.url)
        assert total(found, "tritonprobe_launches_total") == 41
        assert total(found, "tritonprobe_errors_total", part="ledger_file") == 1
        up.end(signal.SIGTERM)
        assert up.process.stderr is not None
        assert "foreign.tpl: foreign: it is no ledger of tritonprobe" in up.process.stderr.read()


def test_a_full_disk_is_served(small_disk: Path) -> None:
    ledger = FileLedger(small_disk, size=1 << 19)
    ledger.add(schema.LAUNCHES, ("k", "all"), 5)
    with (small_disk / "hog").open("wb") as hog, pytest.raises(OSError, match="No space left"):
        hog.write(bytes(1 << 20))
    with exporter(small_disk) as up:
        assert total(scrape(up.url), "tritonprobe_launches_total") == 5
        assert "is served already, by a process that" in refused(small_disk, "--port", 0)
    ledger.close()


def test_a_read_only_disk_is_served(small_disk: Path) -> None:
    ledger = FileLedger(small_disk, size=1 << 19)
    ledger.add(schema.LAUNCHES, ("k", "all"), 5)
    ledger.close()
    del ledger
    subprocess.run(["mount", "-o", "bind,ro", small_disk, small_disk], check=True)  # as a volume of a sidecar
    try:
        with exporter(small_disk) as up:
            assert total(scrape(up.url), "tritonprobe_launches_total") == 5
    finally:
        subprocess.run(["umount", small_disk], check=True)


def test_without_its_starter_it_ends_once_nobody_counts(tmp_path: Path) -> None:
    running = counting(WAITS, tmp_path)
    with exporter(tmp_path, "--starter", "1") as up:  # whoever that is, it is not what started it
        assert total(scrape(up.url), "tritonprobe_launches_total") == 41
        assert not until(lambda: up.process.poll() is not None, seconds=3)
        killed(running)
        assert up.process.wait(20) == 0


def test_a_directory_is_in_use_while_a_process_has_a_file_in_it(tmp_path: Path) -> None:
    assert not is_counting(tmp_path)
    assert not is_counting(tmp_path / "missing")
    with exporting(tmp_path, Settings(port=0)):
        assert (tmp_path / LOCK_NAME).exists()
        assert not is_counting(tmp_path)  # it only reads
        ledger = FileLedger(tmp_path)
        assert is_counting(tmp_path)
        ledger.close()
        assert not is_counting(tmp_path)
