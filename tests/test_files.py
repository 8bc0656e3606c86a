"""Files for a user: whole or not at all, and nothing that is no file is ever replaced by one."""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonprobe.files import STALE_SECONDS, is_special, write_whole


def breaks_off() -> Iterator[str]:
    yield "half"
    raise OSError(errno.EIO, "gone")


def test_a_file_is_made_and_replaced(tmp_path: Path):
    path = tmp_path / "file"
    write_whole(path, ["a", "b\n"])
    assert path.read_text() == "ab\n"
    write_whole(path, ["c"])
    assert path.read_text() == "c"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_may_be_made_for_its_owner_alone(tmp_path: Path):
    for name, mode, made in (("anybody's", 0o666, 0o644), ("mine", 0o600, 0o600)):
        before = os.umask(0o022)
        try:
            write_whole(tmp_path / name, ["a"], mode)
        finally:
            os.umask(before)
        assert (tmp_path / name).stat().st_mode & 0o777 == made


def test_what_breaks_off_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("before")
    for target in (path, tmp_path / "new"):
        with pytest.raises(OSError, match="gone"):
            write_whole(target, breaks_off())
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_left_long_ago_goes(tmp_path: Path):
    for name, age in ((".tritonprobe-0123.part", 2 * STALE_SECONDS), (".tritonprobe-4567.part", 60.0)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / ".mine.part").write_text("somebody else's")
    os.utime(tmp_path / ".mine.part", (0, 0))
    write_whole(tmp_path / "file", ["a"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.part", ".tritonprobe-4567.part", "file"]


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path):
    """A folder of that name, or somebody else's file in /tmp."""
    for i in range(8):
        left = tmp_path / f".tritonprobe-{i}.part"
        left.mkdir() if i % 2 else left.touch()
        os.utime(left, (0, 0))
    write_whole(tmp_path / "file", ["a"])
    assert {path.name for path in tmp_path.iterdir()} == {"file", *(f".tritonprobe-{i}.part" for i in (1, 3, 5, 7))}


def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path):
    for name in ("there", "to-come"):
        link = tmp_path / f"link-{name}"
        link.symlink_to(tmp_path / name)
        (tmp_path / "there").write_text("before")
        write_whole(link, ["after"])
        assert link.is_symlink()
        assert (tmp_path / name).read_text() == "after"


def test_a_pipe_is_written_to(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, ["a", "b"])
    reader.join()
    assert read == ["ab"]
    assert pipe.is_fifo()
    assert is_special(pipe)


def test_a_device_is_written_to(tmp_path: Path):
    """By a link, for where tests run as root a fault would cost the machine its device."""
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "full", ["x"])
    write_whole(Path("/proc/self/fd/1"), [""])
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert Path("/dev/full").is_char_device()


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path):
    path = tmp_path / ("n" * 255)
    write_whole(path, ["x"])
    assert path.read_text() == "x"


def test_two_that_write_in_one_folder_at_the_same_time_write_each_their_own(tmp_path: Path):
    """Two threads, or processes of two containers that have the same number."""

    def other_comes_in_between() -> Iterator[str]:
        yield "a"
        write_whole(tmp_path / "theirs", ["b" * 9], 0o600)
        yield "a"

    write_whole(tmp_path / "mine", other_comes_in_between(), 0o600)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mine": "aa", "theirs": "b" * 9}


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where others may write into the folder, and guess the name of the file that is being written."""
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    guesses = iter(["00", "11"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(guesses))
    (tmp_path / ".tritonprobe-00.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", ["x"])
    write_whole(tmp_path / "file", ["x"])
    assert victim.read_text() == "theirs"
    assert not (tmp_path / "file").is_symlink()
