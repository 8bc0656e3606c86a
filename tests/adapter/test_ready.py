"""Ready: after the census is replayed, or when its time is over; and what a cold call is from then on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.compiler.errors import CompilationError

import tritonprobe
from tests.adapter import kernels
from tests.adapter.conftest import fresh, samples_of, total_of
from tritonprobe import runtime as runtime_module
from tritonprobe.export.routes import Source, respond
from tritonprobe.incidents import ColdAfterReady
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.shapes.census import Census
from tritonprobe.story import tell, to_json
from tritonprobe.testing import capture_cold_calls, compile_only, no_cold_calls

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
X = torch.empty(256)


@pytest.fixture
def census(tmp_path: Path, instrumented: Runtime, add: Any) -> Path:
    """Of two variants; afterwards nothing is compiled, as in a new process."""
    add(X, X, X, 64)
    add(X, X, X, 63)
    path = tmp_path / "census.json"
    instrumented.census().save(path)
    tritonprobe.uninstrument()
    add.kernel.device_caches.clear()
    return path


@pytest.fixture
def served(census: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Runtime]]:
    """``served(...)``: a new runtime with these settings, instrumented, with an empty cache."""
    made: list[Runtime] = []

    def start(**settings: Any) -> Runtime:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"cache-{len(made)}"))
        fresh = Runtime(Settings(**settings))
        made.append(fresh)
        monkeypatch.setattr(runtime_module, "_current", fresh)
        tritonprobe.instrument()
        return fresh

    with compile_only("cuda:90"):
        yield start
        for runtime in made:
            runtime.adapter.uninstall()


def ask(runtime: Runtime) -> tuple[int, dict[str, Any]]:
    response = respond("/ready", None, Source(runtime))
    return response.status, json.loads(response.body)


def test_it_is_503_until_the_census_is_replayed_then_200_for_ever(
    served: Callable[..., Runtime], census: Path, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = served(prewarm=str(census))
    seen: list[tuple[int, dict[str, Any]]] = []
    replay = runtime.prewarm

    def prewarm(*args: Any, **kwargs: Any) -> Any:
        seen.append(ask(runtime))
        return replay(*args, **kwargs)

    monkeypatch.setattr(runtime, "prewarm", prewarm)
    assert ask(runtime) == (503, {"ready": False, "because": "tritonprobe.ready() was not called yet"})
    tritonprobe.ready()
    assert seen == [(503, {"ready": False, "because": f"prewarming from {census}"})]
    status, said = ask(runtime)
    assert (status, said["prewarm_coverage"]) == (200, 1.0)
    assert said["because"] == f"prewarmed from {census}, coverage 100.0%"
    add(X, X, X, 64)
    assert total_of(runtime, "cold_calls_after_ready_total") == 0
    add(X[1:], X, X, 64)  # nobody recorded that
    assert total_of(runtime, "cold_calls_after_ready_total") == 1
    assert ask(runtime)[0] == 200


def warnings_of_a_replay(census: Census, path: Path, start: Callable[..., Runtime], caplog: Any) -> list[str]:
    census.save(path)
    start(prewarm=str(path))
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):  # a program that has not set up its logging
        tritonprobe.ready()
    return [record.getMessage() for record in caplog.records]


def test_a_whole_replay_warns_of_nothing(
    served: Callable[..., Runtime], census: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of_a_replay(Census.load(census), census, served, caplog) == []


def test_a_stale_census_is_one_warning_with_its_reasons(
    served: Callable[..., Runtime], census: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = Census.load(census)
    first, second = found.entries.values()
    entries = {one.identity: one for one in (replace(first, source="0" * 64), second)}
    (line,) = warnings_of_a_replay(replace(found, entries=entries), census, served, caplog)
    assert re.fullmatch(
        r"tritonprobe: prewarmed 1 variant in [\d.]+ s: 1 compiled, 0 there before; 1 skipped, coverage 50\.0%; "
        r"tests\.adapter\.kernels\.add_kernel: the kernel's source changed, or something that it calls",
        line,
    )


def test_of_many_reasons_the_first_are_shown(
    served: Callable[..., Runtime], census: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = Census.load(census)
    first, *_ = found.entries.values()
    gone = [replace(first, kernel=f"k{n}", qualname=f"gone_{n}\n" + "x" * 400, hash=f"{n:064x}") for n in range(5)]
    twice = [replace(first, source="0" * 64, hash="a" * 64), replace(first, source="0" * 64, hash="b" * 64)]
    entries = {one.identity: one for one in [*twice, *gone]}
    (line,) = warnings_of_a_replay(replace(found, entries=entries), census, served, caplog)
    assert "7 skipped, coverage 0.0%; " in line
    assert "\n" not in line
    assert len(line) < 1300
    assert line.endswith("; and 3 more reasons")
    assert "or something that it calls (2 times)" in line


def test_a_census_of_nothing_is_a_warning(
    served: Callable[..., Runtime], census: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = warnings_of_a_replay(Census(), census, served, caplog)
    assert line.endswith("0 skipped, coverage none for this device")


def test_without_a_census_it_is_ready_and_the_coverage_is_absent(served: Callable[..., Runtime]) -> None:
    runtime = served()
    tritonprobe.ready()
    status, said = ask(runtime)
    assert (status, said["because"]) == (200, "tritonprobe.ready() was called")
    assert "prewarm_coverage" not in said
    assert samples_of(runtime, "prewarm_coverage_ratio") == {}


def test_the_timeout_fails_open_and_says_so(
    served: Callable[..., Runtime], census: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = served(prewarm=str(census), ready_timeout=1e-9)
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        tritonprobe.ready()
    status, said = ask(runtime)
    assert status == 200
    assert said["because"] == "the ready_timeout of 1e-09 s passed, at a coverage of 0.0%"
    assert said["prewarm_coverage"] == 0.0
    assert "ready though prewarming is not done" in caplog.text


def test_a_compile_that_hangs_keeps_no_server_down(
    served: Callable[..., Runtime], census: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = served(prewarm=str(census), ready_timeout=0.2)
    let_go = threading.Event()
    monkeypatch.setattr("tritonprobe.adapter.replay.Replay.replay", lambda *_: let_go.wait(60))
    monkeypatch.setattr(sys.modules["tritonprobe.prewarming.run"], "GRACE_SECONDS", 0.1)
    begin = time.monotonic()
    tritonprobe.ready()
    assert time.monotonic() - begin < 5
    assert ask(runtime)[1]["because"].startswith("the ready_timeout of 0.2 s passed, at a coverage of 0.0%")
    let_go.set()


@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("{}", "no census")])
def test_a_census_that_cannot_be_read_keeps_no_server_down(
    served: Callable[..., Runtime], tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, says: str
) -> None:
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    runtime = served(prewarm=str(path))
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        tritonprobe.ready()
    status, said = ask(runtime)
    assert status == 200
    assert said["because"].startswith(f"not prewarmed: TRITONPROBE_PREWARM: {path}: ")
    assert says in caplog.text


def test_a_cold_call_after_ready_is_a_line_with_its_reason(
    served: Callable[..., Runtime], add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served()
    add(X, X, X, 64)
    tritonprobe.ready()
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        add(X, X, X, 1)
    (line,) = [record.getMessage() for record in caplog.records if "cold after ready" in record.getMessage()]
    assert line.startswith("tritonprobe: tests.adapter.kernels.add_kernel n<=1 was cold after ready: compile, ")
    assert line.endswith("n: %16 -> ==1")


def test_the_line_of_a_cold_call_that_raised_says_so_and_why_it_was_cold_again(
    served: Callable[..., Runtime], caplog: pytest.LogCaptureFixture
) -> None:
    served()
    kernel = fresh(kernels.asserting_kernel)
    tritonprobe.ready()
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        for _ in range(3):
            with pytest.raises(CompilationError):
                kernel[(1,)](X, 3, BLOCK=64)
    lines = [record.getMessage() for record in caplog.records if "cold after ready" in record.getMessage()]
    assert [line.partition(" ms, ")[2] for line in lines] == [
        "new kernel; raised CompileTimeAssertionFailure",
        "same variant, which raised before; raised CompileTimeAssertionFailure",
        "same variant, which raised before; raised CompileTimeAssertionFailure",
    ]


def test_the_report_of_a_kernel_that_never_compiled_says_that_it_did_not(served: Callable[..., Runtime]) -> None:
    runtime = served()
    kernel = fresh(kernels.asserting_kernel)
    tritonprobe.ready()
    for _ in range(2):
        with pytest.raises(CompilationError):
            kernel[(1,)](X, 3, BLOCK=64)
    source = Source(runtime, report=lambda: to_json(tell(runtime)))
    page = respond("/report", "text/plain", source).body.decode()
    assert "so far: 2 cold calls, 2 after ready; 2 raised\n" in page
    assert "because same variant, which raised before; raised CompileTimeAssertionFailure\n" in page
    remedies = page.partition("what would make it stop")[2].partition("\n\n")[0]
    assert "Mend what raised CompileTimeAssertionFailure" in remedies
    assert "Prewarm" not in remedies
    assert "TRITON_CACHE_DIR" not in remedies


def test_the_gate_says_that_a_cold_call_raised(served: Callable[..., Runtime]) -> None:
    served()
    kernel = fresh(kernels.asserting_kernel)
    said = pytest.raises(AssertionError, match="new kernel; raised CompileTimeAssertionFailure")
    with said, no_cold_calls(), contextlib.suppress(CompilationError):
        kernel[(1,)](X, 3, BLOCK=64)


def test_in_tests_it_can_raise(served: Callable[..., Runtime], add: Any) -> None:
    runtime = served(on_cold_after_ready="raise")
    add(X, X, X, 64)
    tritonprobe.ready()
    add(X, X, X, 64)
    with pytest.raises(ColdAfterReady, match="n: %16 -> other"):
        add(X, X, X, 63)
    add(X, X, X, 63)  # it is hot now
    assert total_of(runtime, "cold_calls_after_ready_total") == 1
    assert total_of(runtime, "errors_total") == 0


@pytest.mark.parametrize(("disabled", "says"), [(False, "not prewarmed"), (True, "tritonprobe.ready() was called")])
def test_a_process_without_a_device_prewarms_nothing_and_says_so(
    census: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disabled: bool, says: str
) -> None:
    runtime = Runtime(Settings(prewarm=str(census), disabled=disabled))
    monkeypatch.setattr("tritonprobe.adapter.device.is_in_use", lambda: False)
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        runtime.ready()
        runtime.ready()
    assert runtime.prewarmed is None
    status, said = ask(runtime)
    assert (status, said["because"].partition(":")[0]) == (200, says)
    because = f"TRITONPROBE_PREWARM={census}: no device is in use in this process yet"
    assert [line.split("; ")[0] for line in caplog.messages] == [f"tritonprobe: {because}"] * (not disabled)


def test_an_engines_process_without_a_device_is_no_mistake(
    census: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(Settings(prewarm=str(census)))
    monkeypatch.setattr("tritonprobe.adapter.device.is_in_use", lambda: False)
    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        runtime.engine_ready("its warm-up is over")
    assert (caplog.messages, ask(runtime)[1]["because"]) == ([], "its warm-up is over")


def test_prewarming_in_a_thread_leaves_the_others_their_launches(
    served: Callable[..., Runtime], census: Path, add: Any
) -> None:
    runtime = served()
    add(X, X, X, 64)
    thread = threading.Thread(target=lambda: tritonprobe.prewarm(Census.load(census)))
    thread.start()
    for _ in range(500):
        add(X, X, X, 64)
    thread.join()
    assert total_of(runtime, "launches_total") == 501


PROGRAM = """
import torch, pytest, tritonprobe
from tests.adapter.kernels import add_kernel
from tritonprobe.testing import compile_only
X = torch.empty(64)

@pytest.fixture(scope="module", autouse=True)
def device():
    with compile_only("cuda:90"):
        {}
        yield

def test_hot(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=64)

def test_cold(no_cold_calls):
    add_kernel[(1,)](X, X, X, 1, BLOCK=64)

def test_cold_and_asked_for_later(request):
    request.getfixturevalue("no_cold_calls")
    add_kernel[(1,)](X, X, X, 63, BLOCK=64)

def test_cold_and_wrong(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=32)
    raise LookupError("its own")

@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_cold_as_is_known(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=16)

@pytest.fixture
def cold_and_absent(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=256)
    pytest.skip("nothing to test")

def test_that_does_not_run(cold_and_absent):
    pass

@pytest.fixture
def cold_and_broken(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=512)
    raise LookupError("of the fixture")

def test_that_cannot_run(cold_and_broken):
    pass

def test_without_the_gate():
    add_kernel[(1,)](X, X, X, 64, BLOCK=128)
"""


def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, program: str) -> pytest.RunResult:
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str((ROOT / path).resolve()) for path in paths))
    pytester.makepyfile(test_gate=program)
    # Where tritonprobe is installed, pytest finds it by itself; a checkout that only lies on the path has to be named.
    found = "tritonprobe" in {point.name for point in metadata.entry_points(group="pytest11")}
    plugin = () if found else ("-p", "tritonprobe.pytest_plugin")
    return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider")


@pytest.mark.parametrize("watched", [True, False], ids=["instrumented", "nothing watched"])
def test_the_fixture_is_a_gate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    first = "tritonprobe.instrument(); " if watched else ""
    program = PROGRAM.format(first + "add_kernel[(1,)](X, X, X, 64, BLOCK=64)")
    result = run_tests(pytester, monkeypatch, program)
    result.assert_outcomes(passed=2, failed=3, xfailed=1, skipped=1, errors=1)  # and no error at the fixture's end
    result.stdout.fnmatch_lines(["1 cold call where none was allowed:", "*add_kernel n<=1: compile*"])
    told = result.stdout.str().partition(" short test summary info ")[0]  # which repeats it whole where CI is set
    assert told.count("add_kernel n<=1: compile") == 1
    result.stdout.fnmatch_lines(
        [
            "FAILED *::test_cold_and_wrong - LookupError: its own",
            "ERROR *::test_that_cannot_run - LookupError: of the fixture",
        ]
    )


ON_THE_SETTINGS_DEVICE = """
import torch, pytest, triton, tritonprobe
from tests.adapter.kernels import add_kernel
X = torch.empty(64)
plain = triton.JITFunction.run

def test_cold(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=64)

def test_hot(no_cold_calls):
    add_kernel[(1,)](X, X, X, 64, BLOCK=64)

def test_outside():
    assert triton.JITFunction.run is plain
    add_kernel[(1,)](X, X, X, 63, BLOCK=64)

def test_hot_since_then(no_cold_calls):
    add_kernel[(1,)](X, X, X, 63, BLOCK=64)

def test_the_device_can_be_given_back():
    tritonprobe.uninstrument()
    with pytest.raises(RuntimeError, match="0 active drivers"):
        add_kernel[(1,)](X, X, X, 63, BLOCK=64)
"""


def test_what_is_hot_in_one_test_is_hot_in_the_next(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings' device is there from the first gate on."""
    monkeypatch.setenv("TRITONPROBE_DEVICE", "compile-only:cuda:90")
    result = run_tests(pytester, monkeypatch, ON_THE_SETTINGS_DEVICE)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_cold - *1 cold call where none was allowed:*"])


def test_an_instrumented_program_has_the_device_outside_of_the_gate_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONPROBE_DEVICE", "compile-only:cuda:90")
    pytester.makeconftest("import tritonprobe\ntritonprobe.instrument()")
    program = ON_THE_SETTINGS_DEVICE.replace(
        "X = torch.empty(64)", "X = torch.empty(64)\nadd_kernel[(1,)](X, X, X, 64, BLOCK=64)"
    )
    run_tests(pytester, monkeypatch, program).assert_outcomes(passed=5)


def test_a_block_that_was_cold_is_shown_without_our_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONPROBE_DEVICE", "compile-only:cuda:90")
    program = (
        "import torch\n"
        "from tests.adapter.kernels import add_kernel\n"
        "from tritonprobe.testing import no_cold_calls\n"
        "X = torch.empty(64)\n"
        "def test_cold():\n"
        "    with no_cold_calls():\n"
        "        add_kernel[(1,)](X, X, X, 64, BLOCK=64)\n"
    )
    result = run_tests(pytester, monkeypatch, program)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*with no_cold_calls():", "E*add_kernel n<=64: *", "test_gate.py:6: *"])
    result.stdout.no_fnmatch_line("*testing.py*")
    result.stdout.no_fnmatch_line("*contextlib.py*")


def test_cold_calls_are_captured_where_nothing_was_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, add: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(runtime_module, "_current", Runtime(Settings()))
    plain = triton.JITFunction.run
    with compile_only("cuda:90"):
        with capture_cold_calls() as calls:
            add(X, X, X, 64)
        assert [call.reasons for call in calls] == [("new kernel",)]
        assert triton.JITFunction.run is plain
        add(X, X, X, 63)
    assert len(calls) == 1


def test_a_function_may_be_a_gate_and_call_itself(served: Callable[..., Runtime], add: Any) -> None:
    served()

    @no_cold_calls()
    def launch(*sizes: int) -> None:
        for size in sizes[:1]:
            launch(*sizes[1:])
            add(X, X, X, size)

    with pytest.raises(AssertionError, match=r"^1 cold call where none was allowed:\n"):
        launch(64, 64)
    launch(64, 64)


@pytest.mark.parametrize("gate", ["no_cold_calls", "capture_cold_calls"])
def test_a_gate_is_not_open_where_nothing_can_be_watched(gate: str) -> None:
    code = f"from tritonprobe.testing import {gate}\nwith {gate}(): pass"
    environment = {**os.environ, "TRITONPROBE_DISABLED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{gate}() would see nothing" in done.stderr
