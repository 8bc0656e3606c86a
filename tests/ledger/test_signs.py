"""Signs between processes: ready stands while its writer lives; what was asked for stands until asked otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tritonprobe.ledger import signs


def test_ready_stands_while_its_process_lives(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tritonprobe.ledger import signs
handle = signs.tell_ready(Path({str(tmp_path)!r}), 1234567890)
print("told", flush=True)
input()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        assert signs.ready_at(tmp_path) == 1234567890
        process.kill()
    assert (tmp_path / signs.READY).exists()
    assert signs.ready_at(tmp_path) is None


def test_a_daemon_that_closes_every_descriptor_keeps_its_own_files(tmp_path: Path) -> None:
    """At its end the sign's number is another file's, which has something to be written yet."""
    code = f"""
import os
from pathlib import Path
from tritonprobe.ledger import signs
signs.keep(signs.tell_ready(Path({str(tmp_path)!r}), 1))
os.closerange(3, 64)
files = [open({str(tmp_path)!r} + f"/{{i}}.log", "w") for i in range(8)]
for file in files:
    file.write("its last words")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / f"{i}.log").read_text() for i in range(8)] == ["its last words"] * 8


def test_a_sign_changes_the_directorys_time(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(1, 1))
    before = signs.changed(tmp_path)
    signs.ask(tmp_path, "off")
    assert signs.changed(tmp_path) != before
    assert signs.changed(tmp_path / "gone") is None


def test_what_was_asked_for_last_counts_and_each_asking_is_another(tmp_path: Path) -> None:
    assert signs.asked(tmp_path) is None
    first = signs.ask(tmp_path, "off")
    assert signs.asked(tmp_path) == first
    again = signs.ask(tmp_path, "off")
    assert again.token != first.token
    assert signs.asked(tmp_path) == again
    assert signs.ask(tmp_path, "on").state == "on"


def test_an_answer_is_of_one_process(tmp_path: Path) -> None:
    signs.answer(tmp_path, signs.Answer("7a", "abc", "JITFunction.run"))
    assert signs.answered(tmp_path, "7a") == signs.Answer("7a", "abc", "JITFunction.run")
    assert signs.answered(tmp_path, "8b") is None


def test_answers_go_with_what_they_answered(tmp_path: Path) -> None:
    """A server that starts over and over while it is off would leave one each time."""
    first = signs.ask(tmp_path, "off")
    signs.answer(tmp_path, signs.Answer("7a", first.token, ""))
    signs.ask(tmp_path, "off")
    assert [path.name for path in tmp_path.iterdir()] == [signs.SWITCH]


def test_two_that_write_at_once_are_in_nobodys_way(tmp_path: Path) -> None:
    """They may have the same number, in two containers; here in two threads."""
    errors: list[OSError] = []

    def write(ledger: str) -> None:
        try:
            for _ in range(200):
                signs.answer(tmp_path, signs.Answer(ledger, "abc", ""))
                signs.ask(tmp_path, "on")
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(f"{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert signs.asked(tmp_path) is not None


@pytest.mark.parametrize("text", ["", "off", "sideways 12", "\x00\xff", "off " + "x" * 100_000])
def test_a_damaged_sign_asks_for_nothing_that_was_not_asked(tmp_path: Path, text: str) -> None:
    (tmp_path / signs.SWITCH).write_text(text)
    found = signs.asked(tmp_path)
    assert found is None or (found.state == "off" and text.startswith("off x"))


def test_a_link_in_place_of_a_sign_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("off token")
    (tmp_path / signs.SWITCH).symlink_to(tmp_path / "elsewhere")
    assert signs.asked(tmp_path) is None
