"""Files that cannot be read: each is named, with what is wrong with it, and the others are read all the same."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger.scrape import SMALL, dies, everything, files, finished, values
from tritonprobe.ledger import DirectoryReader, FileLedger, fold, schema
from tritonprobe.ledger.layout import BASE_NAME, COUNT_AT, FORMAT, Base, Plan, pack_base

K = ("k", "all")


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


def test_a_foreign_file(good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    folder, bad = good_and_bad
    bad.write_bytes(b"#!/bin/sh\n" * 1000)
    assert named_by(folder, caplog) == f"{bad.name}: foreign: it is no ledger of tritonprobe"


def test_a_file_of_another_name(good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    folder, bad = good_and_bad
    bad = bad.rename(folder / "copy.tpl")
    assert named_by(folder, caplog).startswith("copy.tpl: foreign: its name is not the one it was given")
    bad.unlink()


@pytest.mark.parametrize(
    ("length", "named"),
    [(0, "no whole header"), (100, "no whole header"), (5000, "it has 5000 bytes of 65536")],
)
def test_a_truncated_file(
    length: int, named: str, good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder, bad = good_and_bad
    os.truncate(bad, length)
    assert f"{bad.name}: cut short: " in named_by(folder, caplog)
    assert named in named_by(folder, caplog)


def test_a_file_of_a_newer_version(good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    folder, bad = good_and_bad
    spoil(bad, 8, struct.pack("=I", FORMAT + 1))
    told = f"written by newer tritonprobe: its format is {FORMAT + 1}, this one reads {FORMAT}"
    assert told in named_by(folder, caplog)


def test_a_link_a_pipe_and_a_directory(good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_damaged_index_is_read_up_to_there(good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    folder, bad = good_and_bad
    data = bad.read_bytes()
    at = data.index(b"lost", Plan(SMALL).index_at)
    spoil(bad, at, b"LOST")
    assert "an index record fails its checksum; the" in named_by(folder, caplog)


def test_more_records_announced_than_there_are(
    good_and_bad: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder, bad = good_and_bad
    spoil(bad, COUNT_AT, struct.pack("=Q", 2**60))
    reader = DirectoryReader(folder)
    assert values(reader, schema.LAUNCHES) == {K: 1, ("lost", "all"): 10}
    assert "an index record has an impossible length" in reader.problems[bad.name]


def test_series_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        f"{out.strip()}: 1 series left out: another version of tritonprobe wrote them"
    )
    assert fold.fold(tmp_path, above=0) == 1  # the other one waits for a reader that knows it
    assert out.strip() in files(tmp_path)


def test_a_base_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
