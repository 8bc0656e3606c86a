"""Where ledger files lie: who may use a directory, what is refused and in which words, and when it goes."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tritonprobe.ledger import directory
from tritonprobe.ledger.directory import Directory, DirectoryError, choose

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def aged(path: Path, days: float) -> None:
    then = time.time() - days * directory.DAY
    os.utime(path, (then, then))


def test_without_a_name_a_fresh_private_directory_in_memory_is_made() -> None:
    found, another = choose(None), choose(None)
    try:
        assert found.fresh
        assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
        assert found.path.parent in (Path("/dev/shm"), Path(tempfile.gettempdir()))
        assert another.path != found.path
    finally:
        directory.leave(found)
        directory.leave(another)
    assert not found.path.exists()


def test_a_named_directory_is_made_and_never_removed(tmp_path: Path) -> None:
    found = choose(str(tmp_path / "ledger"))
    assert found == Directory(tmp_path / "ledger", fresh=False)
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
    assert choose(str(tmp_path / "ledger")) == found
    directory.leave(found)
    assert found.path.is_dir()


def test_a_name_is_taken_from_where_the_program_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose("ledger").path == tmp_path / "ledger"


def test_a_planted_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    for target in ("elsewhere", "nowhere"):
        link = tmp_path / f"to_{target}"
        link.symlink_to(target)
        with pytest.raises(DirectoryError, match=rf"{link}: is a symbolic link, which someone else may have planted"):
            choose(str(link))
    assert not (tmp_path / "nowhere").exists()


def test_what_others_may_write_into_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(DirectoryError, match=r"others may write into it; chmod 700 it"):
        choose(str(tmp_path))


@as_root
def test_what_belongs_to_someone_else_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(DirectoryError, match=rf"{tmp_path}: belongs to UID 12345, not to UID 0"):
        choose(str(tmp_path))
    directory.check_readable(tmp_path)  # an exporter may be someone else


def test_what_cannot_be_made_or_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DirectoryError, match=r"TRITONPROBE_DIR=.*/no/such: cannot be made \(No such file or directory\)"
    ):
        choose(str(tmp_path / "no" / "such"))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DirectoryError, match=r"cannot be made \(File exists\)"):
        choose(str(file))
    with pytest.raises(DirectoryError, match=r"is not a directory"):
        directory.check_readable(file)
    with pytest.raises(DirectoryError, match=r"No such file or directory"):
        directory.check_readable(tmp_path / "missing")


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 25 0:27 / /dev/shm rw,relatime - tmpfs tmpfs rw
31 27 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
32 27 0:41 / /mnt/with\\040space rw - fuse.sshfs host: rw
33 27 0:42 / /mnt/over rw - cifs //server/share rw
34 27 0:43 / /mnt/over rw - xfs /dev/vdb rw
35 27 0:44 / /home/local rw - ext4 /dev/vdc rw
this line says nothing
"""


@pytest.mark.parametrize(
    ("path", "kind", "refused"),
    [
        ("/tmp/x", "ext4", False),
        ("/dev/shm/x", "tmpfs", False),
        ("/home/me/ledger", "nfs4", True),
        ("/homes/me", "ext4", False),
        ("/home/local/x", "ext4", False),
        ("/mnt/with space/x", "fuse.sshfs", True),
        ("/mnt/over/x", "xfs", False),
    ],
)
def test_a_file_system_is_known_by_its_mount(path: str, kind: str, refused: bool) -> None:
    assert directory.file_system(Path(path), MOUNTS) == kind
    assert directory.is_network(kind) == refused


def test_a_file_system_that_nobody_tells_of_is_not_refused() -> None:
    assert directory.file_system(Path("/x"), "") is None
    assert not directory.is_network("fuse.fuse-overlayfs")
    assert not directory.is_network("overlay")


def test_old_unused_directories_of_ours_are_swept(tmp_path: Path) -> None:
    names = ("dead", "young", "used", "served", "linked")
    paths = {name: tmp_path / f"{directory.PREFIX}{name}" for name in names}
    other = tmp_path / "other-dead"
    for path in (*paths.values(), other):
        if path is not paths["linked"]:
            path.mkdir()
            (path / "1.tpl").touch()
    paths["linked"].symlink_to(other)
    with locked(paths["used"] / "2.tpl"), locked(paths["served"] / "any name"):
        for path in (*paths.values(), other):
            aged(path, 2)
        aged(paths["young"], 0.5)
        directory.sweep(tmp_path)
    assert {name for name, path in paths.items() if path.exists()} == {"young", "used", "served", "linked"}
    assert (other / "1.tpl").exists()


def test_the_maker_removes_its_directory_unless_others_count_in_it(tmp_path: Path) -> None:
    made = Directory(tmp_path / "made", fresh=True)
    made.path.mkdir()
    with locked(made.path / "theirs.tpl"):
        directory.leave(made)
        assert made.path.exists()
    directory.leave(made)
    assert not made.path.exists()
    directory.leave(made)  # nothing left to do
