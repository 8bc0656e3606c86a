"""What the README says of tritonprobe's cost comes from the measurements' own documents, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs import measured
from tritonprobe.cli.bench_report import document
from tritonprobe.proving.intervals import interval
from tritonprobe.proving.overhead import MODES, Overhead, Result, body
from tritonprobe.proving.rounds import Rounds
from tritonprobe.proving.scrape import Scrape
from tritonprobe.proving.scrape import body as scrape_body
from tritonprobe.traffic.client import Load
from tritonprobe.traffic.latency import Outcome, Replay, Summary
from tritonprobe.traffic.trace import Trace, TraceRow

MADE = {"device": "cuda:90 (a GPU)", "versions": {"triton": "3.6.0"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of measurements, and a README with nothing between its marks."""
    (tmp_path / "README.md").write_text(f"before\n{measured.BEGIN}stale\n{measured.END}after\n")
    monkeypatch.setattr(measured, "PAGE", tmp_path / "README.md")
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    return tmp_path


def unwrapped() -> str:
    return " ".join(measured.part().split())


def test_the_readme_is_up_to_date() -> None:
    text = measured.PAGE.read_text()
    assert text == measured.page(text), "stale; run: python docs/measured.py"


def test_without_measurements_there_is_nothing(folder: Path) -> None:
    assert measured.main(["--check"]) == 1
    assert measured.main([]) == 0
    assert measured.main(["--check"]) == 0
    assert (folder / "README.md").read_text() == f"before\n{measured.BEGIN}{measured.END}after\n"


def _overhead(again: float) -> dict[str, object]:
    rounds = Rounds(base=[8.0] * 9, other=[8.25] * 9, again=[again] * 9)
    results = tuple(Result.of(mode, "add", rounds, seed=0) for mode in MODES[:2])
    return {**MADE, **body(Overhead(results, {}, "native", MADE), launches=10, seed=0)}


def test_an_engine_is_told_with_what_it_kept_and_what_windows_take(folder: Path) -> None:
    kept = {"median": 0.9961, "low": 0.9923, "high": 1.0012}
    made = {**MADE, "kept_ratio": {"on": kept}, "mode": "eager", "windows_share_by_their_own_account": 0.002}
    (folder / "vllm_cost_eager.json").write_text(json.dumps(made))
    assert unwrapped().endswith(
        "- vLLM eager (cuda:90 (a GPU), triton 3.6.0, a small model) kept 0.996 [0.992, 1.001] of its tokens a "
        "second, less the 0.2% that GPU windows take. [vllm_cost_eager.json](docs/measurements/vllm_cost_eager.json)"
    )


def test_a_hot_launch_is_told_with_its_interval(folder: Path) -> None:
    (folder / "overhead.json").write_text(json.dumps(_overhead(again=8.0)))
    assert unwrapped().endswith(
        "- A hot launch (cuda:90 (a GPU), triton 3.6.0): `add` (5 arguments) took 8.00 us alone, and watched "
        "+0.25 [+0.25, +0.25] us. [overhead.json](docs/measurements/overhead.json)"
    )


def test_a_noisy_measurement_says_nothing(folder: Path) -> None:
    (folder / "overhead.json").write_text(json.dumps(_overhead(again=9.0)))
    assert "nothing can be said" in measured.part()
    assert "0.25" not in measured.part()


def test_a_scrape_is_told_with_its_interval(folder: Path) -> None:
    seconds = (0.02, 0.02, 0.02)
    found = Scrape(lines=10_040, size=1, seconds=seconds, interval=interval(seconds, seed=0))
    (folder / "scrape.json").write_text(json.dumps({**MADE, **scrape_body(found, series=10_000, seed=0)}))
    assert "- A scrape of 10,040 samples from `tritonprobe serve`: 20 ms [20 ms, 20 ms]." in unwrapped()


def test_what_clients_saw_is_told(folder: Path) -> None:
    trace = Trace((TraceRow(0.0, 8, 2),), skipped=0, source="azure.csv")
    outcome = Outcome(
        index=0, due=0.0, sent=0.0, prompt_tokens=8, asked_tokens=2, tokens=2, ttft=0.05, tpot=0.01, e2e=0.06,
        status=200, error=None, detail=None, id="a",
    )  # fmt: skip
    replay = Replay(requests=1, outcomes=(outcome,), clipped=0, wall=1.0, interrupted=False)
    made = document(trace, Load("http://127.0.0.1:1", model="tiny", speed=2), replay, Summary.of(replay))
    (folder / "serve_gpu.json").write_text(json.dumps(made))
    assert (
        "- A watched server of model tiny on a GPU, 1 of 1 requests of azure.csv completed at 2x: "
        "TTFT P50 50 ms, P95 50 ms, P99 50 ms."
    ) in unwrapped()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inconclusive": false}', '{"rows": []}'])
def test_a_file_that_is_no_measurement_is_named(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cold_calls.json").write_text(text)
    assert measured.main([]) == 2
    assert "cold_calls.json: not what `tritonprobe bench` writes" in capsys.readouterr().err
    assert "stale" in (folder / "README.md").read_text()


def test_a_page_without_the_marks_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "README.md").write_text("no marks\n")
    assert measured.main([]) == 2
    assert "the part stands between" in capsys.readouterr().err
