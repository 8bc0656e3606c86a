"""``tritonprobe off`` and ``on``: the patches of running processes go and come back, and each process says so."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import require_tool
from tests.export.exporters import until
from tritonprobe.cli.switching import answers
from tritonprobe.ledger import DirectoryReader, FileLedger, Sample, signs
from tritonprobe.ledger.layout import FORMAT
from tritonprobe.prewarming.keeper import collect, fold

ROOT = Path(__file__).parents[2]

# A server in small: launches whenever it is told to, and says what Triton looks like. A child of its own follows, too.
PROGRAM = """
import os, sys
import torch, triton, triton.language as tl
from triton.runtime import jit
original = jit.create_function_from_signature, triton.JITFunction.run
import tritonprobe

@triton.jit
def add(x, n, BLOCK: tl.constexpr):
    pass

def launch(n=1, block=16):
    for _ in range(n):
        add[(1,)](torch.empty(16), 16, BLOCK=block)

launch()  # a binder of Triton's own, which is adopted
plain = add.device_caches[0][4]
tritonprobe.instrument()
if "--fork" in sys.argv and os.fork() == 0:
    while True:
        __import__("time").sleep(1)
print("up", flush=True)
for line in sys.stdin:
    if line.strip() == "launch":
        launch(10)
        print("launched", flush=True)
    elif line.strip() == "launch cold":
        launch(1, 32)
        print("launched", flush=True)
    else:
        as_it_was = original == (jit.create_function_from_signature, triton.JITFunction.run)
        own = add.device_caches[0][4] is plain
        ours = [type(f).__module__ for f in sys.meta_path if type(f).__module__.startswith("tritonprobe")]
        print(f"{as_it_was} {own} {len(ours)}", flush=True)
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def program(directory: Path, *words: str, within: tuple[str, ...] = ()) -> Iterator[Program]:
    env = {
        **os.environ,
        "TRITONPROBE_DIR": str(directory),
        "TRITON_CACHE_DIR": str(directory.parent / "cache"),
    }
    code = directory.parent / "program.py"
    code.write_text("from tritonprobe.testing import compile_only\n" + PROGRAM.replace("original =", DEVICE, 1))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*within, sys.executable, code, *words], env=env, stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield Program(process)
        finally:
            process.terminate()


# The device stays whatever is patched, so that the program can launch while it is off.
DEVICE = "device = compile_only('cuda:90')\ndevice.__enter__()\noriginal ="


def tritonprobe(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tritonprobe", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def launches(directory: Path) -> int:
    for family in DirectoryReader(directory).collect():
        if family.metric.name == "launches_total":
            return int(sum(s.value for s in family.samples if isinstance(s, Sample)))
    return 0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.mkdir(mode=0o700)
    return path


def test_off_leaves_a_running_program_as_if_we_had_never_been_there_and_on_comes_back(directory: Path) -> None:
    with program(directory) as running:
        running.ask("launch")
        assert launches(directory) == 10
        assert running.ask("look").startswith("False False ")
        done = tritonprobe("off", directory)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"process {running.pid} (")
        assert done.stdout.rstrip().endswith("): off")
        assert running.ask("look") == "True True 0"
        running.ask("launch")
        assert launches(directory) == 10
        assert tritonprobe("on", directory).returncode == 0
        running.ask("launch")
        assert launches(directory) == 20


def test_every_process_of_the_directory_follows_children_too(directory: Path) -> None:
    with program(directory, "--fork") as running:
        said = tritonprobe("off", directory, "--json").stdout
        done = json.loads(said)
        assert said == json.dumps(done, indent=1) + "\n"  # as that of every verb
        followed = {each["pid"] for each in done["processes"] if each["followed"]}
        assert running.pid in followed
        assert len(followed) == len(done["processes"]) == 2
        (child,) = followed - {running.pid}
        os.kill(child, 9)


def test_whoever_names_no_directory_is_told_which_it_was(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONPROBE_DIR", str(directory))
    with program(directory) as running:
        for state in ("off", "on"):
            first, second = tritonprobe(state).stdout.splitlines()
            assert first == f"{directory} is switched {state}"
            assert second.startswith(f"process {running.pid} ")


def test_a_program_that_starts_while_it_is_off_is_not_watched_until_it_is_on(directory: Path) -> None:
    said = tritonprobe("off", directory).stdout
    assert said == f"no process counts in {directory} now; those to come there start off\n"
    with program(directory) as running:
        running.ask("launch")
        assert running.ask("look").startswith("True True")
        assert tritonprobe("on", directory).returncode == 0
        running.ask("launch")
        assert launches(directory) == 10


def test_a_program_that_starts_while_on_is_asked_for_answers_as_well(directory: Path) -> None:
    """Whoever asked may still be waiting: for a process that hangs, say."""
    tritonprobe("on", directory)
    asked = signs.asked(directory)
    assert asked is not None
    with program(directory) as running:
        (found,) = answers(directory, asked, time.monotonic() + 5)
        assert (found.pid, found.followed) == (running.pid, True)


def test_a_file_of_another_format_is_named_and_no_process_is_said_to_be_none(directory: Path) -> None:
    ledger = FileLedger(directory)
    (file,) = directory.glob("*.tpl")
    with file.open("r+b") as written:
        written.seek(8)  # after the magic
        written.write(struct.pack("=I", 1))
    done = tritonprobe("off", directory, "--wait", "0.1")
    assert done.returncode == 1
    assert done.stdout == (
        f"a process that cannot be asked counts in {file}: "
        f"written by older tritonprobe: its format is 1, this one reads {FORMAT}\n"
    )
    said = json.loads(tritonprobe("off", directory, "--wait", "0.1", "--json").stdout)
    assert (said["processes"], [each["file"] for each in said["unreadable"]]) == ([], [file.name])
    del ledger


def test_a_process_that_hangs_is_named_and_the_exit_code_says_so(directory: Path) -> None:
    with program(directory) as running:
        os.kill(running.pid, 19)  # SIGSTOP
        try:
            done = tritonprobe("off", directory, "--wait", "0.5")
        finally:
            os.kill(running.pid, 18)
        assert done.returncode == 1
        assert f"process {running.pid}" in done.stdout
        assert "no answer within 0.5 s" in done.stdout
        assert until(lambda: running.ask("look").startswith("True True"))  # it follows once it runs again


def test_who_is_asked_by_two_answers_the_later_and_the_earlier_is_told_so(directory: Path) -> None:
    with program(directory) as running:
        os.kill(running.pid, 19)  # SIGSTOP
        try:
            command = [sys.executable, "-m", "tritonprobe", "off", str(directory), "--wait", "60"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as earlier:
                assert until(lambda: signs.asked(directory) is not None)
                signs.ask(directory, "on")
                said, _ = earlier.communicate(timeout=30)
        finally:
            os.kill(running.pid, 18)
    assert earlier.returncode == 1
    assert said.endswith("): no answer: somebody else has asked for on meanwhile\n")


def test_two_containers_whose_processes_have_the_same_number_are_two(directory: Path) -> None:
    within = (require_tool("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*within, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    with program(directory, within=within) as first, program(directory, within=within) as second:
        for running in (first, second):
            running.ask("launch")
            running.ask("launch cold")
        assert until(lambda: len(list(directory.glob("census-*.json"))) == 2)
        assert fold(directory, above=0) == 0  # both live, though no /proc that is seen here has a number 1 with them
        done = tritonprobe("off", directory)
        assert (done.stdout, done.returncode) == ("process 1: off\nprocess 1: off\n", 0)
        for running in (first, second):
            assert running.ask("look") == "True True 0"
        census = collect(directory)
    assert fold(directory, above=0) == 2
    assert collect(directory) == census
    assert sum(census.launches.values()) == 2 * 11


@pytest.mark.parametrize("words", [("off", "/nowhere/at/all"), ("on", "/etc/passwd"), ("off", "x", "y")])
def test_bad_input_is_one_line(words: tuple[str, ...]) -> None:
    done = tritonprobe(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
