"""`configure()` puts another runtime in place: who listened goes on to listen, and the process stays in its engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tritonprobe
from tritonprobe import Census, cold_calls, configure, join, runtime
from tritonprobe.ledger import signs
from tritonprobe.ledger.directory import is_locked
from tritonprobe.ledger.reading import ledger_files
from tritonprobe.model import ColdCall, Event, LaunchError, PrewarmEnded, RequestCost
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.testing import compile_only

EVENT = LaunchError("m.kernel", "ValueError", "launch")


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """A runtime that nobody has used yet."""
    made = Runtime(Settings(dir=str(tmp_path / "ledger")))
    monkeypatch.setattr(runtime, "_current", made)
    return made


def test_subscribers_are_taken_along(first: Runtime):
    heard: list[Event] = []
    first.bus.subscribe(heard.append)
    configure(rank="5")
    second = runtime.current()
    assert second is not first
    second.bus.publish(EVENT)
    assert heard == [EVENT]
    assert len(second.bus._subscriptions) == len(first.bus._subscriptions)  # its own are not doubled


def test_a_process_counts_in_one_file(first: Runtime, tmp_path: Path):
    """Else it would seem to be two processes, one of which follows no switch."""
    configure(rank="5")
    living = [path for path in ledger_files(tmp_path / "ledger") if is_locked(path)]
    assert living == [runtime.current().ledger_file]
    assert first.ledger_file is None
    child = os.fork()
    if child == 0:  # which has a file of its own, and that of its parent beside it
        living = [path for path in ledger_files(tmp_path / "ledger") if is_locked(path)]
        os._exit(0 if len(living) == 2 and first.ledger_file is None else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_runtime_that_a_signals_handler_was_faster_to_make_counts_in_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Slow(Runtime):
        def __init__(self, settings: Settings) -> None:
            super().__init__(settings)
            monkeypatch.setattr(runtime, "Runtime", Runtime)
            runtime.current()

    monkeypatch.setenv("TRITONPROBE_DIR", str(tmp_path / "ledger"))
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setattr(runtime, "Runtime", Slow)
    assert type(runtime.current()) is Runtime
    living = [path for path in ledger_files(tmp_path / "ledger") if is_locked(path)]
    assert living == [runtime.current().ledger_file]


def test_a_process_stays_in_its_engine(first: Runtime):
    join("llm")
    assert first.live.engine == "llm"
    configure(rank="5")
    assert first.live.engine is None
    assert runtime.current().live.engine == "llm"
    runtime.current().live.leave()


def test_the_environment_may_name_the_engine(tmp_path: Path):
    settings = Settings.from_env({"TRITONPROBE_ENGINE": "llm", "TRITONPROBE_DIR": str(tmp_path / "ledger")})
    made = Runtime(settings)
    assert made.live.engine == "llm"
    made.live.leave()


def test_without_a_directory_there_is_no_engine_and_one_line_says_so(caplog: pytest.LogCaptureFixture):
    made = Runtime(Settings())
    made.join("llm")
    made.join("llm")
    assert made.live.engine is None
    assert [r.getMessage() for r in caplog.records] == [
        "tritonprobe: the processes of engine 'llm' share no stalls without TRITONPROBE_DIR"
    ]


def test_a_prewarming_that_ended_is_an_event(first: Runtime):
    heard: list[Event] = []
    first.bus.subscribe(heard.append)
    with compile_only("cuda:90"):
        try:
            done = first.prewarm(Census())
        finally:
            first.adapter.uninstall()
    (event,) = heard
    assert isinstance(event, PrewarmEnded)
    assert (event.planned, event.replayed, event.coverage, event.stopped) == (0, 0, done.coverage, None)
    assert event.end_ns - event.start_ns >= done.seconds * 1e9 * 0.99


def test_switched_off_a_program_keeps_the_device_that_it_runs_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from triton.runtime.driver import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    before = driver._active
    made = Runtime(Settings(device="compile-only:cuda:90"))
    monkeypatch.setattr(runtime, "_current", made)
    made.watch()
    ours = driver._active
    assert ours is not before
    made.unwatch(keep_device=True)
    assert driver._active is ours
    made.watch(everything=False)
    assert driver._active is ours
    made.unwatch()
    assert driver._active is before


def test_what_it_takes_to_tell_of_a_cold_call_is_in_the_exposure_of_who_waited() -> None:
    """A slow log, or the interpreter's turn that writing to it costs: the request waits for that, too."""
    made = Runtime(Settings())
    costs: list[RequestCost] = []

    def slow(event: Event) -> None:
        if isinstance(event, ColdCall):
            time.sleep(0.02)
        elif isinstance(event, RequestCost):
            costs.append(event)

    made.bus.subscribe(slow)
    request = made.live.request("r")
    with made.live.step([request]):
        begin = time.monotonic_ns()
        with made.outside("planted", "planted"):
            time.sleep(0.01)
        waited = time.monotonic_ns() - begin
    request.token()
    request.finish()
    (cost,) = costs
    assert waited >= 30_000_000
    assert abs(cost.before.total_ns - waited) < 5_000_000


def test_a_fault_while_we_tell_of_a_cold_call_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runtime(Settings())

    def stall(*args: object) -> None:
        raise OSError("the journal is gone")

    monkeypatch.setattr(made.live, "stall", stall)
    monkeypatch.setattr(cold_calls, "TELLING_NS", 0)
    with made.outside("planted", "planted"):
        pass
    errors = [f for f in made.ledger.collect() if f.metric.name == "errors_total"]
    assert [sample.labels for family in errors for sample in family.samples] == [("calls",)]


def test_a_cold_call_whose_end_cannot_be_shown_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runtime(Settings())

    def show_open() -> None:
        raise OSError("the journal is gone")

    monkeypatch.setattr(made.live, "show_open", show_open)
    with made.outside("planted", "planted"):
        pass
    assert len(made.cold_calls) == 1
    errors = [f for f in made.ledger.collect() if f.metric.name == "errors_total"]
    assert [sample.labels for family in errors for sample in family.samples] == [("calls",)]


@pytest.mark.parametrize(
    "use",
    [
        lambda: tritonprobe.serve(port=0).close(),
        tritonprobe.asgi_app,
        tritonprobe.collector,
        tritonprobe.request,
        lambda: tritonprobe.request().finish(),
        tritonprobe.instrument,
        tritonprobe.ready,
    ],
    ids=["serve", "asgi_app", "collector", "a live request", "a finished one", "instrument", "ready"],
)
def test_a_runtime_that_somebody_uses_is_not_replaced(first: Runtime, use: Callable[[], object]) -> None:
    used = use()
    with pytest.raises(RuntimeError, match="comes before"):
        configure(history=5)
    assert runtime.current() is first
    del used
    tritonprobe.uninstrument()


def test_who_is_instrumented_while_switched_off_is_in_use_as_well(first: Runtime, tmp_path: Path) -> None:
    """Else `tritonprobe on` would find the one that was replaced, whose numbers nobody sees."""
    signs.ask(tmp_path / "ledger", "off")
    tritonprobe.instrument()
    with pytest.raises(RuntimeError, match="comes before"):
        configure(history=5)
    assert runtime.current() is first
    tritonprobe.uninstrument()


def test_an_engine_is_said_to_be_ready_as_long_as_a_process_lives_that_said_so(tmp_path: Path) -> None:
    """Of several servers of one engine the first leaves the sign, and may be the first to go."""
    directory, another = tmp_path / "ledger", Runtime(Settings(dir=str(tmp_path / "ledger")))
    sign = signs.tell_ready(directory, 1234)
    made, follower = Runtime(Settings(dir=str(directory))), Runtime(Settings(dir=str(directory)))
    assert not made.engine_ready("it is warm")
    follower.follow_ready()
    assert made.ready_unix_ns == follower.ready_unix_ns == 1234
    assert made.ready_because == follower.ready_because == "another process of its engine is"
    os.close(sign)
    follower.follow_ready()  # which was told, and has nothing to say itself
    assert signs.ready_at(directory) is None
    made.follow_ready()
    assert signs.ready_at(directory) == 1234
    another.follow_ready()
    assert another.ready_unix_ns == 1234


def test_a_sign_that_cannot_be_left_now_is_left_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runtime(Settings(dir=str(tmp_path / "ledger")))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(signs, "tell_ready", full)
        assert made.engine_ready("it is warm")
    assert signs.ready_at(tmp_path / "ledger") is None
    assert made.ready_because == "it is warm"
    made.follow_ready()
    assert signs.ready_at(tmp_path / "ledger") == made.ready_unix_ns
