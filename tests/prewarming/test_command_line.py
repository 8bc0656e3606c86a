"""Recorded by one program, compiled without a GPU, carried, installed, and hot in another: all by commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from tests.export.exporters import exporter, get
from tests.prewarming.caches import census_of, is_whole
from tritonprobe.shapes.census import Census

ROOT = Path(__file__).parents[2]
LAUNCHES = ("--", sys.executable, "-m", "tests.prewarming.launches")


def tritonprobe(*words: str | Path, cache: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITONPROBE_DEVICE": "compile-only:cuda:90", **settings}
    if cache is not None:
        env["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", "tritonprobe", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    census = tmp_path / "census.json"
    done = tritonprobe("run", "--port", "0", "--record", census, *LAUNCHES, "64", "63", cache=tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert f"{census}: 2 variants, 2 launches recorded" in done.stderr
    return census


def test_from_a_record_to_a_hot_start(recorded: Path, tmp_path: Path) -> None:
    build, there, bundle = tmp_path / "build", tmp_path / "there", tmp_path / "b.tpb"

    done = tritonprobe("prewarm", recorded, "--target", "cuda:90", "--json", cache=build, TRITONPROBE_DEVICE="")
    assert done.returncode == 1  # nobody allowed the package
    (first, *_) = json.loads(done.stdout)["skipped"]
    assert first["because"] == "module tests.adapter.kernels is not one that the program loaded; allow tests"

    words = ("prewarm", recorded, "--target", "cuda:90", "--allow", "tests", "--budget", "2m")
    done = tritonprobe(*words, cache=build, TRITONPROBE_DEVICE="")
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"2 variants in [\d.]+ s: 2 compiled, 0 there before; 0 skipped, 0 left out; 100\.0% of ", done.stdout
    )
    assert done.stdout.endswith(" of the recorded launches are covered\n")

    assert tritonprobe("bundle", "pack", "-o", bundle, "--census", recorded, cache=build).returncode == 0
    assert "2 binaries, 0 autotune results, a census" in tritonprobe("bundle", "show", bundle).stdout
    done = tritonprobe("bundle", "install", bundle, "--target", "cuda:90", "--census", tmp_path / "c.json", cache=there)
    assert done.stdout == "2 folders installed, 0 completed, 0 there before\n", done.stderr

    hot = tmp_path / "hot.json"
    done = tritonprobe("run", "--port", "0", "--record", hot, *LAUNCHES, "64", "63", cache=there)
    assert "(2 disk)" in done.stderr, done.stderr
    assert tritonprobe("census", "diff", tmp_path / "c.json", hot).returncode == 0


def test_a_second_prewarm_says_that_all_was_there(recorded: Path, tmp_path: Path) -> None:
    words = ("prewarm", recorded, "--target", "cuda:90", "--allow", "tests")
    build, said = tmp_path / "build", []
    for binaries_before in (0, 2):
        assert len(list(build.glob("*/*.cubin"))) == binaries_before
        said.append(tritonprobe(*words, cache=build, TRITONPROBE_DEVICE="").stdout)
    assert ": 2 compiled, 0 there before; " in said[0]
    assert ": 0 compiled, 2 there before; " in said[1]

    said.append(tritonprobe(*words, cache=build, TRITONPROBE_DEVICE="", TRITON_ALWAYS_COMPILE="1").stdout)
    assert ": 2 compiled, 0 there before; " in said[2]

    one, *_ = build.glob("*/*.cubin")
    for file in one.parent.iterdir():
        file.unlink()  # an empty folder is no entry
    result = json.loads(tritonprobe(*words, "--json", cache=build, TRITONPROBE_DEVICE="").stdout)
    assert (result["replayed"], result["on_disk"], result["there_before"]) == (2, 1, 0)
    assert len(list(build.glob("*/*.cubin"))) == 2


def test_what_triton_cannot_read_is_skipped(recorded: Path, tmp_path: Path) -> None:
    words = ("prewarm", recorded, "--target", "cuda:90", "--allow", "tests")
    assert tritonprobe(*words, cache=tmp_path / "build", TRITONPROBE_DEVICE="").returncode == 0
    binary, *_ = (tmp_path / "build").glob("*/*.cubin")
    binary.unlink()  # while what speaks of it stays
    done = tritonprobe(*words, cache=tmp_path / "build", TRITONPROBE_DEVICE="")
    assert (done.returncode, done.stderr) == (0, "")
    skipped, rest = done.stdout.splitlines()
    assert skipped.startswith("skipped tests.adapter.kernels.add_kernel: ")
    assert re.match(r"1 variant in [\d.]+ s: 0 compiled, 1 there before; 1 skipped", rest)


def prewarmed(census: Path, cache: Path, *command: str, **settings: str) -> list[str]:
    """What a run with the census says after its banner."""
    done = tritonprobe("run", "--port", "0", "--prewarm", census, "--", *command, cache=cache, **settings)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[1:]


def test_after_a_prewarm_a_run_says_when_its_cold_calls_came(recorded: Path, tmp_path: Path) -> None:
    serves = (sys.executable, "-m", "tests.prewarming.serves")
    (last,) = prewarmed(recorded, tmp_path / "a", *serves, "64", "63", "64")
    assert re.match(r"tritonprobe: 3 launches, 2 cold calls \(2 compile\) of [\d.]+ m?s; ", last)
    assert "; 2 of them in the prewarm, none after ready; metrics were at " in last

    incident, last = prewarmed(recorded, tmp_path / "b", *serves, "64", "1")
    assert " was cold after ready: compile, " in incident
    assert "; 2 of them in the prewarm, 1 after ready (1 compile); metrics were at " in last


def test_a_stale_census_is_heard_of_in_a_program_without_logging(recorded: Path, tmp_path: Path) -> None:
    recorded.write_text(re.sub(r'"source": *"[0-9a-f]+"', '"source": "00"', recorded.read_text()))
    warning, *_, last = prewarmed(recorded, tmp_path / "a", sys.executable, "-m", "tests.prewarming.serves", "64")
    assert ": 0 compiled, 0 there before; 2 skipped, coverage 0.0%; " in warning
    assert "tests.adapter.kernels.add_kernel: the kernel's source changed" in warning
    assert "; 1 of them after ready (1 compile)" in last


def test_a_census_that_nobody_replayed_is_told_of_at_the_end(recorded: Path, tmp_path: Path) -> None:
    counted, last = prewarmed(recorded, tmp_path / "a", *LAUNCHES[1:], "64")
    assert re.match(r"tritonprobe: 1 launch, 1 cold call \(1 compile\) of [\d.]+ m?s; metrics were at ", counted)
    assert last == f"tritonprobe: {recorded} was never replayed: nobody called tritonprobe.ready()"

    too_early = "import triton, tritonprobe; tritonprobe.ready()"
    *_, last = prewarmed(recorded, tmp_path / "b", sys.executable, "-c", too_early, TRITONPROBE_DEVICE="")
    because = "where tritonprobe.ready() was called, no device was in use yet"
    assert last == f"tritonprobe: {recorded} was never replayed: {because}"


def test_a_bundle_is_installed_for_the_settings_device(recorded: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tpb"
    assert tritonprobe("bundle", "pack", "-o", bundle, cache=tmp_path / "first").returncode == 0

    def install(name: str, *words: str, device: str) -> subprocess.CompletedProcess[str]:
        return tritonprobe("bundle", "install", bundle, *words, cache=tmp_path / name, TRITONPROBE_DEVICE=device)

    done = install("a", device="compile-only:cuda:90")
    assert (done.returncode, done.stdout) == (0, "2 folders installed, 0 completed, 0 there before\n"), done.stderr
    done = install("b", device="compile-only:cuda:100")
    assert (done.returncode, "made for cuda:90, this is cuda:100" in done.stderr) == (2, True)
    done = install("b", device="cuda:90")
    assert (done.returncode, done.stderr.startswith("Error: TRITONPROBE_DEVICE='cuda:90': expected ")) == (2, True)
    assert install("c", "--target", "cuda:90", device="compile-only:cuda:100").returncode == 0
    done = install("d", device="cuda:90")
    assert (done.returncode, "TRITONPROBE_DEVICE='cuda:90': expected compile-only:cuda:90" in done.stderr) == (2, True)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("target", "arch"), [("cuda:90", 90), ("cuda:80", None)])
def test_a_target_is_what_is_compiled_for_whatever_the_setting_says(
    recorded: Path, tmp_path: Path, target: str, arch: int | None
) -> None:
    words = ("prewarm", recorded, "--target", target, "--allow", "tests")
    setting = "compile-only:cuda:90" if arch is None else "compile-only:cuda:80"
    done = tritonprobe(*words, cache=tmp_path / "build", TRITONPROBE_DEVICE=setting)
    made = [json.loads(path.read_text())["target"]["arch"] for path in tmp_path.glob("build/*/add_kernel.json")]
    if arch is None:
        assert (done.returncode, made) == (1, []), done.stdout
        assert f"made for cuda:90, this is {target}" in done.stdout
    else:
        assert (done.returncode, made) == (0, [arch, arch]), done.stdout


def test_a_bundle_for_another_device_is_exit_code_2(recorded: Path, tmp_path: Path) -> None:
    bundle, there = tmp_path / "b.tpb", tmp_path / "there"
    done = tritonprobe("bundle", "pack", "-o", bundle, "--target", "cuda:80", cache=tmp_path / "first")
    assert (done.returncode, done.stdout, bundle.exists()) == (2, "", False)
    assert done.stderr.endswith(" has no entries for cuda:80; it has some for cuda:90: nothing was packed\n")

    assert tritonprobe("bundle", "pack", "-o", bundle, cache=tmp_path / "first").returncode == 0
    done = tritonprobe("bundle", "install", bundle, "--target", "cuda:100", cache=there)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: {bundle}: made for cuda:90, this is cuda:100: 0 of 2 entries would hit, so nothing was installed\n"
    )
    assert not there.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("census", "show", "none.json"), "none.json: No such file or directory"),
        (("census", "show", "README.md"), "README.md: no census: Expecting value: line 1 column 1 (char 0)"),
        (("bundle", "show", "README.md"), "README.md: no bundle, or a damaged one"),
        (("bundle", "show", "none.tpb"), "none.tpb: No such file or directory"),
        (("prewarm", "none.json"), "none.json: No such file or directory"),
        (("run", "--prewarm", "none.json", "--", "true"), "none.json: No such file or directory"),
        (("run", "--record", "no/such/f.json", "--", "true"), "no/such is no folder"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(words: tuple[str, ...], says: str) -> None:
    done = tritonprobe(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--target", "cuda:13"), "--target cuda:13"),
        (("--budget", "soon"), "expected a time above 0, such as 60s"),
        (("--cover", "2"), "2"),
        (("--allow", "no_such_package_here"), "--allow no_such_package_here: cannot be imported"),
    ],
)
def test_bad_options_of_prewarm_are_exit_code_2(options: tuple[str, ...], says: str, tmp_path: Path) -> None:
    census_of("add").save(tmp_path / "c.json")
    done = tritonprobe("prewarm", tmp_path / "c.json", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_censuses_are_merged_and_compared(tmp_path: Path) -> None:
    one, two, both = tmp_path / "1.json", tmp_path / "2.json", tmp_path / "both.json"
    census_of("add").save(one)
    census_of("add", "mul").save(two)
    assert tritonprobe("census", "merge", one, two, "-o", both).returncode == 0
    assert Census.load(both).launches == {("m.add", "all"): 2, ("m.mul", "all"): 1}
    done = tritonprobe("census", "diff", one, both)
    assert done.returncode == 1
    assert done.stdout.startswith("+ m.mul ")
    shown = json.loads(tritonprobe("census", "show", both, "--json").stdout)
    assert (shown["variants"], shown["launches"], len(shown["kernels"])) == (2, 3, 2)
    assert "2 variants, 0 autotune winners, 3 launches" in tritonprobe("census", "show", both).stdout


def test_a_killed_process_leaves_its_census_and_the_exporter_serves_all(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    program = (
        "import tritonprobe, sys, time; tritonprobe.instrument(); sys.argv[1:] = [sys.argv[1]]\n"
        "import tests.prewarming.launches; print('launched', flush=True); time.sleep(60)"
    )
    env = {
        **os.environ,
        "TRITONPROBE_DEVICE": "compile-only:cuda:90",
        "TRITONPROBE_DIR": str(ledger),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", program, n], cwd=ROOT, env=env, stdout=subprocess.PIPE) for n in "19"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"launched\n"
    deadline = time.monotonic() + 20
    while len(list(ledger.glob("census-*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in processes:
        process.kill()
        process.wait()
    with exporter(ledger) as up:
        status, text = get(f"{up.url}/census")
    assert status == 200
    census = Census.parse(text)
    assert len(census.entries) == 2
    assert sum(census.launches.values()) == 2


def test_the_exec_probe_asks_and_says_why(tmp_path: Path) -> None:
    with exporter(tmp_path) as up:
        done = tritonprobe("ready", "--url", f"{up.url}/ready")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: not ready: no process counts in {tmp_path} yet\n"
    assert "does not answer" in tritonprobe("ready", "--port", "1").stderr
    assert tritonprobe("ready", "--url", "ftp://x").returncode == 2


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    census, cache = tmp_path / "census.json", tmp_path / "cache"
    many = [str(n) for n in (64, 63, 1, 128)]
    assert tritonprobe("run", "--port", "0", "--record", census, *LAUNCHES, *many, cache=tmp_path / "f").returncode == 0
    words = ["prewarm", str(census), "--target", "cuda:90", "--allow", "tests", "--threads", "1"]
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tritonprobe", *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(cache.glob("*/*.ttir")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    # It may have been done already; if not, it says that it was stopped. Either way every entry is whole.
    assert process.returncode in (0, 130)
    assert ("stopped by Ctrl-C; what is done is kept" in said) == (process.returncode == 130)
    figures = re.search(r" (\d+) compiled, (\d+) there before; (\d+) skipped(?:, (\d+) not done)?, 0 left out", said)
    assert figures is not None, said
    assert sum(int(n or 0) for n in figures.groups()) == 3
    assert is_whole(cache)
    assert tritonprobe(*words, cache=cache).returncode == 0
    assert len(list(cache.glob("*/*.cubin"))) == 3


def test_a_package_of_the_working_directory_may_be_allowed_and_prints_nothing_into_the_document(
    recorded: Path, tmp_path: Path
) -> None:
    """As `python -m` finds it: a console script has no working directory on its path."""
    (tmp_path / "a_server_here").mkdir()
    (tmp_path / "a_server_here" / "__init__.py").write_text(
        "import atexit, os, sys\nprint('imported')\nprint('past us', file=sys.__stdout__)\n"
        "os.write(1, b'by C\\n')\natexit.register(print, 'at exit')"
    )
    code = "import sys; sys.path = [p for p in sys.path if p]; from tritonprobe.cli import main; main()"
    words = ("prewarm", str(recorded), "--target", "cuda:90", "--allow", "a_server_here", "--json")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)["planned"] == 2
    assert sorted(done.stderr.splitlines()) == ["at exit", "by C", "imported", "past us"]
