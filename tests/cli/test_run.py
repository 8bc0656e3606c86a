"""``tritonprobe run``: the command does not notice, its Triton is watched, and whatever cannot be had is one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.export.exporters import exporter, get, scrape, total, until
from tritonprobe.ledger import FileLedger, schema, signs

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "tritonprobe", "run"]
WATCHED = "Triton is watched in this command and its children, by a sitecustomize on PYTHONPATH"
PORTS = "--port, serve(port=...), or TRITONPROBE_PORT"
NOTHING = "tritonprobe: nothing was counted: no process of the command imported Triton where it could be watched"
# A process that counts and says so, without the weight of Triton: what the probe does when it is injected.
COUNTS = """
import os, sys
from pathlib import Path
from tritonprobe.ledger import FileLedger, schema
ledger = FileLedger(Path(os.environ["TRITONPROBE_DIR"]))
ledger.cell(schema.LAUNCHES, ("k", "all"))[0] += 41
ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 1.5)
ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.25)
print(os.environ["TRITONPROBE_DIR"], flush=True)
"""


def run(*words: str | Path, port: int = 0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A whole run; `words` are options of ours and the command."""
    command = [*RUN, "--port", str(port), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def swept(directory: Path) -> None:
    """Does at once what a later start would do in a day."""
    assert directory.is_relative_to("/dev/shm") or directory.is_relative_to(tempfile.gettempdir())
    shutil.rmtree(directory)


def python(code: str) -> tuple[str, str, str, str]:
    return ("--", sys.executable, "-c", code)


class Running:
    """A run in progress."""

    def __init__(self, *words: str | Path) -> None:
        command = [*RUN, "--port", "0", *map(str, words)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def banner(self) -> str:
        """The URL that the first line tells."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"metrics at (http://127\.0\.0\.1:\d+)/metrics; ", line)
        assert found is not None, line
        return found[1]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def finish(self, text: str = "") -> tuple[int, str]:
        """The exit code, and what else went to standard error."""
        _, errors = self.process.communicate(text, timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Those in this list are killed in the end."""
    found: list[Running] = []
    yield found
    for one in found:
        one.process.kill()
        one.process.communicate()


def test_a_program_that_knows_nothing_of_us_is_counted_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'TRITONPROBE_DIR' in os.environ:\n"  # not in our own two
        "    sys.stderr.write('their sitecustomize ran\\n')\n"
    )
    env = {
        **os.environ,
        "TRITONPROBE_DEVICE": "compile-only:cuda:90",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }
    adds = Path(__file__).parent / "adds.py"
    done = run("--", "sh", "-c", f"exec {sys.executable} {adds} 2", env=env)
    assert done.returncode == 3
    assert done.stdout == "level 2 is done\nlevel 1 is done\nlevel 0 is done\n"
    banner, *theirs, summary = done.stderr.splitlines()
    assert re.fullmatch(rf"tritonprobe: metrics at http://127\.0\.0\.1:\d+/metrics; {WATCHED}", banner)
    assert theirs == ["their sitecustomize ran"] * 3
    assert re.fullmatch(
        r"tritonprobe: 30 launches, 3 cold calls \(2 disk, 1 compile\) of [\d.]+ m?s; "
        r"metrics were at http://127\.0\.0\.1:\d+/metrics",
        summary,
    )


def test_metrics_are_served_while_it_runs_and_its_directory_goes_with_it(running: list[Running]) -> None:
    running.append(Running(*python(COUNTS + "sys.stdin.readline()")))
    url, directory = running[0].banner(), running[0].line()
    assert total(scrape(url), "tritonprobe_launches_total") == 41
    assert get(f"{url}/ready")[0] == 503
    code, said = running[0].finish("go on\n")
    assert code == 0
    assert (
        said == f"tritonprobe: 41 launches, 2 cold calls (1 disk, 1 compile) of 1.75 s; metrics were at {url}/metrics\n"
    )
    assert not Path(directory).exists()
    with pytest.raises(OSError, match="refused"):
        get(url)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands(code: int) -> None:
    done = run("sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[1:] == [NOTHING]


def test_death_by_a_signal_is_128_and_its_number() -> None:
    assert run("sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_after_a_crash_the_numbers_stay_and_can_be_served() -> None:
    done = run(*python(COUNTS + "os.kill(os.getpid(), 9)"))
    directory = Path(done.stdout.strip())
    try:
        assert done.returncode == 137
        assert done.stderr.splitlines()[2:] == [
            f"tritonprobe: the command crashed; its numbers stay: tritonprobe serve {directory}"
        ]
        assert sum(path.stat().st_size for path in directory.iterdir()) < 10_000
        with exporter(directory) as up:
            found = scrape(up.url)
        assert total(found, "tritonprobe_launches_total") == 41
        assert total(found, "tritonprobe_cold_call_seconds_sum") == 1.75
    finally:
        swept(directory)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(how: signal.Signals, running: list[Running]) -> None:
    waits = (
        "import signal, sys\n"
        f"signal.signal({int(how)}, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\n"
        "signal.pause()"
    )
    running.append(Running(*python(waits)))
    assert running[0].line() == "up"
    running[0].process.send_signal(how)
    assert running[0].finish()[0] == 5


def test_a_signal_that_ends_the_command_is_no_crash(running: list[Running]) -> None:
    running.append(Running(*python(COUNTS + "import signal; signal.signal(2, signal.SIG_DFL); signal.pause()")))
    directory = Path(running[0].line())
    running[0].process.send_signal(signal.SIGINT)
    code, said = running[0].finish()
    assert code == 130
    assert "crashed" not in said
    assert not directory.exists()


@contextmanager
def in_a_terminal(code: str, until: bytes) -> Iterator[tuple[int, int]]:
    """A run of `code` as the leader of a terminal's session, and that terminal, once it has shown `until`."""
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(sys.executable, [*RUN, "--port", "0", *python(code)])
    shown = b""
    while until not in shown:
        shown += os.read(terminal, 1000)
    yield pid, terminal


COUNTS_SIGNALS = """
import signal, sys, time
came = []
for which in (signal.SIGINT, signal.SIGHUP):
    signal.signal(which, lambda number, _: came.append(number))
print("up", flush=True)
while not came:
    time.sleep(0.01)
time.sleep(0.3)  # a second one, sent on by us, would come at once
sys.exit(sum(came))
"""


def test_ctrl_c_reaches_the_command_once() -> None:
    with in_a_terminal(COUNTS_SIGNALS, b"up\r\n") as (pid, terminal):
        os.write(terminal, b"\x03")
        with suppress(OSError):  # which is how a terminal's other side ends
            while os.read(terminal, 1000):
                pass
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == signal.SIGINT


def test_the_command_hears_that_the_terminal_is_gone() -> None:
    with in_a_terminal(COUNTS_SIGNALS, b"up\r\n") as (pid, terminal):
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == signal.SIGHUP


def test_the_command_inherits_what_it_would_without_us() -> None:
    code = (
        "import os, sys\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "status = dict(line.split(':\\t') for line in lines if ':\\t' in line)\n"
        "ignored = int(status['SigIgn'], 16) & 0x7fff_ffff\n"  # without the two that the C library keeps to itself
        "print('blocked', status['SigBlk'], 'ignored', ignored, 'here', os.getcwd())\n"
        "print('descriptors', sorted(os.listdir('/proc/self/fd')), 'input', sys.stdin.read())\n"
        "print('group', os.getpgrp() == int(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    read, write = os.pipe()

    def said(before: list[str]) -> str:
        return subprocess.run(
            [*before, sys.executable, "-c", code, str(os.getpgrp())],
            input="hello",
            capture_output=True,
            text=True,
            check=True,
            cwd="/tmp",
            env=environment,
            pass_fds=(read,),
        ).stdout

    try:
        assert said([*RUN, "--port", "0", "--"]) == said([])
        assert f"'{read}'" in said([])
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-command", "x"], 127, "no-such-command: command not found on the PATH"),
        (["./no-such-file"], 127, "./no-such-file: command not found"),
        (["/usr"], 126, "/usr: cannot be run: it is a directory"),
        ([__file__], 126, f"{__file__}: cannot be run: it is no executable file"),
    ],
)
def test_a_command_that_cannot_be_run_is_one_line(words: list[str], code: int, said: str) -> None:
    done = run("--", *words)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"tritonprobe: {said}\n")


def test_a_file_that_the_system_cannot_run_is_named(tmp_path: Path) -> None:
    for name, text, code in (("a", "no interpreter", 126), ("b", "#!/no/such/shell\n", 127)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
        done = run(tmp_path / name)
        assert done.returncode == code
        assert f"tritonprobe: {tmp_path / name}: cannot be run: " in done.stderr


def test_a_directory_that_is_switched_off_is_said_to_be(tmp_path: Path) -> None:
    signs.ask(tmp_path, "off")
    done = run("--dir", tmp_path, *python("print('served')"))
    assert (done.returncode, done.stdout) == (0, "served\n")
    assert f"{tmp_path} is switched off, so nothing is watched: tritonprobe on {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("--", "true"), id="without Triton"),
        pytest.param(python(COUNTS), id="without a census"),
        pytest.param(("--dir", __file__, "--", "true"), id="unwatched"),
    ],
)
def test_a_census_of_nothing_replaces_none(command: tuple[str, ...], tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("worth something")
    for path, rest in ((old, "; it is what it was before"), (new, "")):
        done = run("--record", path, *command)
        said = f"tritonprobe: --record {path}: nothing was recorded, so no census was written{rest}"
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, said)
    assert (old.read_text(), new.exists()) == ("worth something", False)


def test_a_taken_port_is_named_and_the_command_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(*python(COUNTS + "print(os.environ.get('TRITONPROBE_PORT'))"), port=port)
    directory, own = done.stdout.split()
    assert (done.returncode, own) == (0, "None")
    assert done.stderr.splitlines() == [
        f"Error: port {port} on 127.0.0.1 is in use; choose a free one, or 0 for any ({PORTS})",
        f"tritonprobe: no metrics are served; the command runs, and its numbers are in {directory}; {WATCHED}",
        "tritonprobe: 41 launches, 2 cold calls (1 disk, 1 compile) of 1.75 s",
    ]


def test_a_directory_that_cannot_be_used_is_named_and_the_command_runs_unwatched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = "import os; print(os.environ.get('PYTHONPATH', ''))"
    done = run("--dir", tmp_path / "file", *python(code), env={**os.environ, "PYTHONPATH": "/theirs"})
    assert (done.returncode, done.stdout) == (0, "/theirs\n")
    because = f"--dir {tmp_path / 'file'}: cannot be made (File exists)"
    assert done.stderr == f"tritonprobe: {because}; the command runs unwatched\n"


def test_a_bad_option_is_one_line_and_nothing_runs(tmp_path: Path) -> None:
    done = run("--", "touch", tmp_path / "ran", port=70_000)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "70000 is not in the range 0<=x<=65535" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_named_directory_stays_and_a_summary_tells_of_its_run_alone(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    ledger.add(schema.LAUNCHES, ("k", "all"), 1000)
    ledger.close()
    for _ in range(2):
        done = run("--dir", tmp_path, *python(COUNTS))
        assert done.stdout == f"{tmp_path}\n"
        assert "tritonprobe: 41 launches, 2 cold calls (1 disk, 1 compile) of 1.75 s; " in done.stderr
    assert len(list(tmp_path.glob("*.tpl"))) == 3


def test_what_others_count_in_a_named_directory_is_not_said_to_be_the_commands(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    ledger.add(schema.LAUNCHES, ("k", "all"), 1000)
    done = run("--dir", tmp_path, *python(COUNTS))
    *_, summary, last = done.stderr.splitlines()
    assert f" of 1.75 s, with other processes that count in {tmp_path}; metrics were at http" in summary
    assert last == f"tritonprobe: processes still count in {tmp_path}: tritonprobe serve {tmp_path}"
    ledger.close()


def test_beside_an_exporter_that_is_there_already_it_says_so(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        done = run("--dir", tmp_path, *python(COUNTS))
        assert done.returncode == 0
        served, *_ = done.stderr.splitlines()
        assert f"is served already, by process {up.process.pid} at {up.url}" in served
        assert total(scrape(up.url), "tritonprobe_launches_total") == 41


def test_a_python_that_nobody_gets_into_is_named() -> None:
    done = run("--", sys.executable, "-I", "-c", "import triton")
    name = Path(sys.executable).name
    banner, summary = done.stderr.splitlines()
    assert banner.endswith(f"; {name} -I lets nobody in: of this command, only its children are watched")
    assert summary == NOTHING


def test_a_tool_that_steps_out_of_our_process_is_still_in_the_command(tmp_path: Path) -> None:
    # What the sitecustomize of opentelemetry-instrument does, so that a program's children are not instrumented.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nsys.instrumented = True\ndel os.environ['PYTHONPATH']\nos.environ['CHANGED'] = '1'\n"
    )
    code = (
        "import os, sys\n"
        "print(sys.instrumented, any(type(f).__name__ == '_AwaitTriton' for f in sys.meta_path), *sorted(os.environ))"
    )
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "LC_ALL": "C.UTF-8"}
    done = run(*python(code), env=env)
    assert done.stdout.split() == ["True", "True", "CHANGED", "LC_ALL", "TRITONPROBE_DIR", "TRITONPROBE_PORT"]


def test_disabled_it_only_runs_the_command() -> None:
    env = {**os.environ, "TRITONPROBE_DISABLED": "1"}
    done = run(*python("import os; print('TRITONPROBE_DIR' in os.environ)"), env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_children_that_outlive_the_command_are_told_of(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    lives = COUNTS + f"open({str(tmp_path / 'end')!r}).read()"
    leaves = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-c', {lives!r}]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "print(child.stdout.readline().decode(), end='')"
    )
    done = run(*python(leaves))
    directory = done.stdout.strip()
    assert done.stderr.splitlines()[-1] == (
        f"tritonprobe: children of the command still count in {directory}: tritonprobe serve {directory}"
    )
    with exporter(Path(directory)) as up:
        assert total(scrape(up.url), "tritonprobe_launches_total") == 41
    with (tmp_path / "end").open("w"):
        pass
    swept(Path(directory))


def test_when_the_exporter_dies_the_command_goes_on(running: list[Running]) -> None:
    running.append(Running(*python(COUNTS + "sys.stdin.readline()")))
    running[0].banner()
    directory = Path(running[0].line())
    who = (directory / "exporter.lock").read_text().split()[1]
    os.kill(int(who), signal.SIGKILL)
    assert running[0].process.stderr is not None
    assert running[0].process.stderr.readline() == (
        f"tritonprobe: the exporter has ended; the command goes on, and counts in {directory}\n"
    )
    assert running[0].finish("go on\n")[0] == 0


def test_when_run_itself_is_killed_nothing_stays_behind(running: list[Running]) -> None:
    running.append(Running(*python(COUNTS + "sys.stdin.readline()")))
    url, directory = running[0].banner(), Path(running[0].line())
    running[0].process.kill()
    running[0].process.wait()
    assert total(scrape(url), "tritonprobe_launches_total") == 41  # the command is alive
    running[0].process.communicate("end\n")

    def gone() -> bool:
        try:
            get(url)
        except OSError:
            return True
        return False

    assert until(gone)
    swept(directory)


def test_a_device_that_cannot_be_used_is_told_before_anything_runs(tmp_path: Path) -> None:
    done = run("--", "touch", tmp_path / "ran", env={**os.environ, "TRITONPROBE_DEVICE": "bad"})
    assert done.returncode == 2
    assert done.stderr.startswith("Error: TRITONPROBE_DEVICE='bad': expected compile-only:cuda:90 ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_a_command_with_a_newline_in_its_name_is_told_of_on_one_line() -> None:
    done = run("--", "no\nsuch")
    assert done.returncode == 127
    assert done.stderr == "tritonprobe: no\\nsuch: command not found on the PATH\n"
