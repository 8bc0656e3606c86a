"""What a process does last, whoever started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, os, sys
from tritonprobe.ends import at_end

def last():
    with open({path!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")

def child(pids):
    if {where} == "late" and sys.argv[1] != "fork":  # nobody's copy, which has to say so itself
        at_end(last)
    pids.put(os.getpid())
    if {raises}:
        raise LookupError("its own")

if {where} == "early":
    at_end(last)  # as it is imported, in a child of the fork server and in a spawned one, too
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if {where} == "late":
        at_end(last)
    pids = context.SimpleQueue()
    children = [context.Process(target=child, args=(pids,)) for _ in range(2)]
    for each in children:
        each.start()
    for each in children:
        each.join()
    print(os.getpid(), pids.get(), pids.get())
"""


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("where", ["early", "late"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_each_process_does_it(method: str, where: str, raises: bool, tmp_path: Path) -> None:
    told, program = tmp_path / "told", tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=str(told), raises=raises, where=repr(where)))
    command = [sys.executable, str(program), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("LookupError: its own") == (2 if raises else 0)
    assert set(told.read_text().split()) == set(done.stdout.split())


CHILD_OF_A_CHILD = """
import multiprocessing, os
from tritonprobe.ends import at_end

def again():
    inner = context.Process(target=lambda: None)
    inner.start()
    inner.join()

context = multiprocessing.get_context("fork")
at_end(lambda: os.write(1, b"x"))
at_end(lambda: 1 / 0)  # a fault of ours
outer = context.Process(target=again)
outer.start()
outer.join()
os.write(1, b" and ")
os._exit(0)
"""


def test_a_child_of_a_child_does_it_too_whatever_the_others_raise() -> None:
    command = [sys.executable, "-c", CHILD_OF_A_CHILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "xx and "
    assert done.stderr.count("a fault at the end; the program is not affected") == 2
