"""Our `sitecustomize` in real processes: it costs nothing, steps aside, and never breaks an import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tritonprobe
from tritonprobe.injection import SITE, injected
from tritonprobe.ledger.reading import ledger_files

COMPILE_ONLY = "compile-only:cuda:90"
NO_PACKAGES = """
import sys
sys.path[:] = [place for place in sys.path if not place.endswith("-packages")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""
"""Takes what is installed out of a program's reach, this tritonprobe too."""


def python(
    code: str, ledger: Path, *path: Path, program: Path = Path(sys.executable), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a watched process, with `path` on the program's own PYTHONPATH."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        base["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        [program, "-c", code],
        cwd=ledger,  # which is where `python -c` looks first
        env={**injected(base, ledger), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def unwatched(code: str, cwd: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def package(place: Path, name: str, text: str) -> Path:
    """A package of that name; returns the folder to put on the path."""
    (place / name).mkdir(parents=True)
    (place / name / "__init__.py").write_text(text)
    return place


def test_a_process_without_triton_loads_nothing_more_than_without_us(tmp_path: Path) -> None:
    code = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    assert json.loads(python(code, tmp_path).stdout) == json.loads(unwatched(code, tmp_path).stdout)
    assert list(tmp_path.iterdir()) == []


def test_its_folder_is_not_on_the_path_of_the_program(tmp_path: Path) -> None:
    code = "import sys; print(sys.path)"
    assert python(code, tmp_path, tmp_path / "mine").stdout == unwatched(code, tmp_path, tmp_path / "mine").stdout
    assert str(SITE) not in python(code, tmp_path).stdout


def test_the_programs_own_sitecustomize_runs_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __file__\n")
    code = "import sys, sitecustomize; print(sys.theirs); print(sitecustomize.__file__, sitecustomize.__spec__.origin)"
    done = python(code, tmp_path, tmp_path)
    assert (done.stdout, done.stderr) == (unwatched(code, tmp_path, tmp_path).stdout, "")
    assert done.stdout.startswith(f"{tmp_path / 'sitecustomize.py'}\n")


@pytest.mark.parametrize("text", ["raise ValueError('theirs')", "import no_such_module", "raise SystemExit(3)", "("])
def test_one_that_fails_fails_as_it_does_without_us(text: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    ours, plain = python("print('runs')", tmp_path, tmp_path), unwatched("print('runs')", tmp_path, tmp_path)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    if "SystemExit" not in text:  # whose traceback names the frames that led there
        assert ours.stderr == plain.stderr


def test_without_one_there_is_none(tmp_path: Path) -> None:
    code = "import sys; print(*sys.modules)\ntry: import sitecustomize\nexcept ImportError as e: print(e)\n"
    done = python(code, tmp_path)
    assert (done.stdout, done.stderr) == (unwatched(code, tmp_path).stdout, "")


def test_usercustomize_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "usercustomize.py").write_text("import sys; sys.theirs = 'ran'\n")
    outside = Path(sys.base_prefix) / "bin" / "python3"  # a virtual environment has no user's site
    done = python("import sys; print(sys.theirs)", tmp_path, tmp_path, program=outside)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_the_first_import_of_triton_is_instrumented_and_shows_no_trace_of_us(tmp_path: Path) -> None:
    code = (
        "import triton, tritonprobe, sys\n"
        "print(tritonprobe.runtime.current().adapter.counting, 'exec_module' in vars(triton.__loader__),"
        " any(type(f).__name__ == '_AwaitTriton' for f in sys.meta_path), 'torch' in sys.modules)"
    )
    done = python(code, tmp_path, TRITONPROBE_DEVICE=COMPILE_ONLY)
    assert (done.stdout, done.stderr) == ("none False False False\n", "")
    assert len(ledger_files(tmp_path)) == 1


def test_without_a_gpu_tritons_own_error_is_followed_by_what_to_do(tmp_path: Path) -> None:
    code = "import triton\ntry: triton.runtime.driver.active\nexcept RuntimeError: print('goes on')\n{}"
    again = "triton.runtime.driver.active.get_current_device()"
    ours = Path(tritonprobe.__file__).parents[1]
    quiet, loud = (python(code.format(more), tmp_path, ours, CUDA_VISIBLE_DEVICES="") for more in ("", again))
    assert (quiet.stdout, loud.stdout) == ("goes on\n", "goes on\n")
    if sys.version_info >= (3, 11):
        assert quiet.stderr == "", "whoever goes on without a GPU knows that there is none"
        *_, error, note = loud.stderr.splitlines()
        assert error.startswith("RuntimeError: 0 active drivers")
        assert note.startswith("tritonprobe: Triton found no GPU here. With TRITONPROBE_DEVICE=compile-only:cuda:90 ")


def test_looking_for_triton_is_not_importing_it(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "for _ in range(2): assert importlib.util.find_spec('triton').loader is not None\n"
        "print('triton' in sys.modules, 'tritonprobe' in sys.modules)\n"
        "import triton; print('tritonprobe' in sys.modules)"
    )
    assert python(code, tmp_path, TRITONPROBE_DEVICE=COMPILE_ONLY).stdout == "False False\nTrue\n"


def test_an_import_that_fails_fails_as_without_us_and_may_be_tried_again(tmp_path: Path) -> None:
    place = package(tmp_path / "broken", "triton", "raise ImportError('no libcuda')")
    code = (
        "import sys, traceback\n"
        "for _ in range(2):\n"
        "    try: import triton\n"
        "    except ImportError as error: print(error, 'triton' in sys.modules)\n"
        f"sys.path.remove({str(place)!r})\n"
        "import triton; print('tritonprobe' in sys.modules)"
    )
    done = python(code, tmp_path, place, TRITONPROBE_DEVICE=COMPILE_ONLY)
    assert (done.stdout, done.stderr) == ("no libcuda False\n" * 2 + "True\n", "")


def test_something_else_called_triton_is_left_alone(tmp_path: Path) -> None:
    place = package(tmp_path / "other", "triton", "answer = 42")
    done = python("import sys, triton; print(triton.answer, 'tritonprobe' in sys.modules)", tmp_path, place)
    assert (done.stdout, done.stderr) == ("42 False\n", "")


def test_a_bare_folder_called_triton_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "bare"
    (place / "triton").mkdir(parents=True)
    done = python(NO_PACKAGES + "import triton; print(*triton.__path__)", tmp_path, place)
    assert (done.stdout, done.stderr) == (f"{place / 'triton'}\n", "")


def test_a_triton_in_an_archive_is_seen(tmp_path: Path) -> None:
    archive = tmp_path / "t.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("triton/__init__.py", "jit = None\n")
        file.writestr("triton/part.py", "value = 1\n")
    fake = package(tmp_path / "fake", "tritonprobe", "def instrument(): print('instrumented')")
    done = python("import triton, triton.part; print(triton.part.value)", tmp_path, archive, fake)
    assert (done.stdout, done.stderr) == ("instrumented\n1\n", "")


def test_the_programs_own_tritonprobe_is_used(tmp_path: Path) -> None:
    fake = package(tmp_path / "fake", "tritonprobe", "def instrument(): print('theirs')")
    triton = package(tmp_path / "stand-in", "triton", "jit = None")
    assert python("import triton", tmp_path, fake, triton).stdout == "theirs\n"


def test_a_python_without_tritonprobe_gets_ours_and_nothing_else_from_beside_it(tmp_path: Path) -> None:
    triton = package(tmp_path / "stand-in", "triton", "jit = None\n__version__ = '3.5.0'")
    code = "before = [*sys.path]; import triton; print(sys.modules['tritonprobe'].__file__, sys.path == before)"
    done = python(NO_PACKAGES + code, tmp_path, triton)
    assert done.stdout == f"{SITE.parent / '__init__.py'} True\n"
    assert "is not probed (UnsupportedTriton: tritonprobe needs triton 3.6 or newer" in done.stderr


def test_our_fault_is_one_line_and_the_program_runs(tmp_path: Path) -> None:
    fake = package(tmp_path / "fake", "tritonprobe", "def instrument(): raise RuntimeError('ours')")
    triton = package(tmp_path / "stand-in", "triton", "jit = None")
    done = python("import triton; print('runs')", tmp_path, fake, triton)
    assert done.stdout == "runs\n"
    (line,) = done.stderr.splitlines()
    assert line.endswith("is not probed (RuntimeError: ours)")


def test_disabled_it_instruments_nothing(tmp_path: Path) -> None:
    done = python("import triton; print('runs')", tmp_path, TRITONPROBE_DISABLED="1")
    assert (done.stdout, done.stderr) == ("runs\n", "")


def test_twice_on_the_path_is_once(tmp_path: Path) -> None:
    code = "import sys; print(sum(type(f).__name__ == '_AwaitTriton' for f in sys.meta_path), sys.path)"
    done = python(code, tmp_path, SITE)
    assert done.stdout.startswith("1 ")
    assert str(SITE) not in done.stdout


HOOK = """
import sys
class AsksAllOthers:
    def find_spec(self, fullname, path, target=None):
        if fullname != "triton": return None
        found = (each.find_spec(fullname, path, target) for each in sys.meta_path if each is not self)
        return next((spec for spec in found if spec is not None), None)
"""
OTEL = "from tritonprobe.export.otel.instrumentor import TritonProbeInstrumentor as Ours; Ours().instrument()\n"


@pytest.mark.parametrize(
    "before",
    [HOOK + "sys.meta_path.insert(0, AsksAllOthers())\n", HOOK + "sys.meta_path.append(AsksAllOthers())\n", OTEL],
    ids=["a hook before us", "a hook behind us", "OpenTelemetry's instrumentor"],
)
def test_others_that_wait_for_triton_as_well_are_in_nobodys_way(before: str, tmp_path: Path) -> None:
    code = before + (
        "import sys, triton, tritonprobe\n"
        "waiting = [f for f in sys.meta_path if getattr(f, '_name', '') == 'triton' or '_AwaitTriton' in repr(f)]\n"
        "print(tritonprobe.runtime.current().adapter._on, waiting, 'exec_module' in vars(triton.__loader__))\n"
    )
    done = python(code, tmp_path, TRITONPROBE_DEVICE=COMPILE_ONLY)
    assert (done.stdout, done.stderr) == ("True [] False\n", "")


def test_threads_that_import_triton_at_once_get_it_instrumented(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "def work():\n"
        "    import triton\n"
        "    triton.jit\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "import tritonprobe; print(tritonprobe.runtime.current().adapter._on)"
    )
    done = python(code, tmp_path, TRITONPROBE_DEVICE=COMPILE_ONLY)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_inductors_worker_processes_are_not_watched_their_parent_is(tmp_path: Path) -> None:
    """What they compile is a phase of the cold call that waits for them, and must not count twice."""
    code = """
import sys
from torch._inductor.compile_worker.subproc_pool import SubprocPool
import triton
pool = SubprocPool(1)
asked = "[__import__('triton').__version__, 'tritonprobe' in __import__('sys').modules]"
print(pool.submit(eval, asked).result(timeout=100), "tritonprobe" in sys.modules)
pool.shutdown()
"""
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["False]", "True"]
