"""Kernels of the module that a program is started as: recorded there, compiled elsewhere, and replayed there again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tritonprobe.shapes.census import Census

ROOT = Path(__file__).parents[2]
SERVER = """
import enum, os, sys
from pathlib import Path
import torch, triton, triton.language as tl
import tritonprobe

print("imported as", __name__)
with open(os.environ["STARTS"], "a") as starts:
    print(__name__, file=starts)

class Mode(enum.Enum):
    ADD = 1
    MUL = 2

ADD = tl.constexpr(Mode.ADD)

@triton.jit
def double(v):
    return v * 2

@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr, MODE: tl.constexpr, AFTER: tl.constexpr):
    o = tl.arange(0, BLOCK)
    a, b = tl.load(x + o, o < n), tl.load(y + o, o < n)
    if MODE == ADD:
        a = a + b
    tl.store(out + o, AFTER(a), o < n)

def main():
    tritonprobe.ready()
    x = torch.empty(64)
    for n in (64, 63):
        add_kernel[(1,)](x, x, x, n, BLOCK=64, MODE=Mode.ADD, AFTER=double)
    from tritonprobe.runtime import current
    for family in current().ledger.collect():
        if family.metric.name == "launches_total":
            print(sorted({sample.labels[0] for sample in family.samples}))

if __name__ == "__main__":
    main()
"""


class Program:
    """A folder with a server, and commands that are called in it."""

    def __init__(self, folder: Path, server: str = "server.py") -> None:
        self.folder = folder
        self.census = folder / "census.json"
        (folder / server).parent.mkdir(exist_ok=True)
        (folder / server).write_text(SERVER)

    def __call__(self, *words: str | Path, cache: str, device: str = "compile-only:cuda:90") -> tuple[int, str, str]:
        (self.folder / "starts").write_text("")
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "STARTS": str(self.folder / "starts"),
            "TRITON_CACHE_DIR": str(self.folder / cache),
            "TRITONPROBE_DEVICE": device,
        }
        command = [sys.executable, "-m", "tritonprobe", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def starts(self) -> list[str]:
        """What its module was called each time that it ran."""
        return (self.folder / "starts").read_text().split()

    def record(self, *command: str) -> str:
        code, out, err = self("run", "--port", "0", "--record", self.census, "--", sys.executable, *command, cache="a")
        assert code == 0, err
        assert ": 2 variants, 2 launches recorded" in err
        return out

    def prewarm(self, *words: str) -> tuple[int, str, str]:
        """As in an image's build."""
        return self("prewarm", self.census, "--target", "cuda:90", *words, cache="build", device="")


@pytest.mark.parametrize(("server", "home"), [("server.py", "server"), ("server/__main__.py", "server.__main__")])
def test_a_module_that_is_run_is_known_by_the_name_that_others_import(tmp_path: Path, server: str, home: str) -> None:
    program = Program(tmp_path, server)
    assert "['__main__.add_kernel']" in program.record("-m", "server")  # its label
    census = Census.load(program.census)
    assert {(e.kernel, e.module) for e in census.entries.values()} == {(f"{home}.add_kernel", home)}
    assert {kernel for kernel, _ in census.launches} == {f"{home}.add_kernel"}
    assert "__main__" not in program.census.read_text().replace("server.__main__", "server")

    code, out, err = program.prewarm("--allow", "server")
    assert (code, err) == (0, f"imported as {home}\n")
    assert re.search(r"2 variants in [\d.]+ s: 2 compiled, 0 there before; 0 skipped, .* 100\.0% of", out)
    assert program.starts == [home]  # without what a program does

    code, _, err = program("run", "--port", "0", "--", sys.executable, "-m", "server", cache="build")
    assert (code, "2 cold calls (2 disk)" in err) == (0, True), err

    again = tmp_path / "again.json"
    words = ("run", "--port", "0", "--prewarm", program.census, "--record", again, "--", sys.executable, "-m", "server")
    code, out, err = program(*words, cache="build")
    assert code == 0
    assert "; 2 of them in the prewarm, none after ready; " in err, err
    assert program.starts == ["__main__"]  # once
    replayed = Census.load(again)
    assert replayed.entries.keys() == census.entries.keys()
    assert replayed.launches == census.launches


def test_what_a_script_defines_is_found_in_it_alone_which_is_said(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.record("server.py")
    code, out, _ = program.prewarm("--allow", "server")
    assert code == 1
    assert "skipped __main__.add_kernel (2 times): __main__ has no add_kernel: a script's own kernels are found" in out
    assert "move them into a module that can be imported, or replay the census in the program" in out

    for command in (("server.py",), ("-m", "server")):
        words = ("run", "--port", "0", "--prewarm", program.census, "--", sys.executable, *command)
        _, _, err = program(*words, cache="a")
        assert "; 2 of them in the prewarm, none after ready; " in err, err
        assert program.starts == ["__main__"]


def test_a_module_is_never_run_a_second_time_to_find_its_kernels(tmp_path: Path) -> None:
    """Not even where it was started as a script, and may be imported by its name."""
    program = Program(tmp_path)
    program.record("-m", "server")
    before = "tritonprobe.ready()"
    allowing = (
        f"print(tritonprobe.prewarm(tritonprobe.Census.load({str(program.census)!r}), modules=['server']).skipped)"
    )
    server = tmp_path / "server.py"
    server.write_text(server.read_text().replace(before, allowing))
    code, out, err = program("run", "--port", "0", "--", sys.executable, "server.py", cache="a")
    assert code == 0, err
    assert "module server is this program, which was started as a script: use python -m server" in out
    assert program.starts == ["__main__"]


def test_who_has_imported_the_program_as_well_gets_both(tmp_path: Path) -> None:
    """As `uvicorn.run("server:app")` does. The constants of each are its own module's."""
    program = Program(tmp_path)
    program.record("-m", "server")
    server = tmp_path / "server.py"
    server.write_text(
        server.read_text().replace(
            "def main():", "def main():\n    import server\n    if __name__ == '__main__': server.main()"
        )
    )
    words = ("run", "--port", "0", "--prewarm", program.census, "--", sys.executable, "-m", "server")
    code, _, err = program(*words, cache="b")
    assert code == 0, err
    assert "none after ready" in err, err
    assert program.starts == ["__main__", "server"]
    compiled = [text.read_text() for text in (tmp_path / "b").glob("*/*.ttir")]
    assert [text.count("arith.addf") for text in compiled] == [1, 1]


def test_a_spawned_process_knows_the_module_that_it_is_of(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(
        "import json, multiprocessing, sys\n"
        "from tritonprobe.adapter.homes import home_of, home_of_main, module_of\n"
        "class A: pass\n"
        "def f(): print(json.dumps([module_of(f), home_of(f), home_of(A), home_of_main()]), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    f()\n"
        "    if 'twice' in sys.argv:\n"
        "        child = multiprocessing.get_context('spawn').Process(target=f)\n"
        "        child.start(); child.join()\n"
    )

    def told(*command: str) -> list[list[str]]:
        """Without what a profiler prints."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]

    names = ("__main__", "__mp_main__")
    assert told("-m", "spawns", "twice") == [[name, "spawns", "spawns", "spawns"] for name in names]
    assert told("spawns.py", "twice") == [[name, "__main__", "__main__", "__main__"] for name in names]
    ((module, home, *_),) = told("-m", "cProfile", "-m", "spawns")  # `sys.modules` has cProfile as its main
    assert (module, home) == ("__main__", "spawns")
