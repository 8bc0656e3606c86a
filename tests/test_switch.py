"""The follower of a directory's switch: a process says that it followed once it has, and a forked child for itself."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from tests.ledger.scrape import SMALL, in_child
from tritonprobe.ledger import FileLedger, signs
from tritonprobe.switch import Switch


class Watched:
    """A runtime that takes its time to be switched off."""

    def __init__(self, directory: Path) -> None:
        self.off = False
        self.taken_back: list[int] = []
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._ledger = FileLedger(directory, size=SMALL)
        self._pid = os.getpid()

    @property
    def ledger_file(self) -> Path | None:
        return self._ledger.path

    def watch(self, everything: bool) -> None:
        raise AssertionError(everything)

    def unwatch(self, keep_device: bool = False) -> list[str]:
        if os.getpid() == self._pid:
            self.begun.set()
            self.may_end.wait(30)
        self.taken_back.append(os.getpid())
        return []

    def follow_ready(self) -> None:
        pass

    def fault(self, part: str) -> None:
        raise AssertionError(part)


def test_a_child_that_is_forked_while_its_parent_is_switched_off_does_it_itself(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    switch = Switch(watched, tmp_path)
    switch.start()
    asked = signs.ask(tmp_path, "off")
    assert watched.begun.wait(30)

    def follows() -> None:
        assert watched.ledger_file is not None
        until = time.monotonic() + 30
        while (said := signs.answered(tmp_path, watched.ledger_file.stem)) is None and time.monotonic() < until:
            time.sleep(0.01)
        assert said is not None
        assert said.token == asked.token
        assert watched.taken_back == [os.getpid()]

    assert in_child(follows) == 0
    watched.may_end.set()
    assert watched.ledger_file is not None
    until = time.monotonic() + 30
    while signs.answered(tmp_path, watched.ledger_file.stem) is None and time.monotonic() < until:
        time.sleep(0.01)
    switch.stop()
    assert watched.taken_back == [os.getpid()]
