"""What the GPU's programs call good, and what they name if it is not; this needs no GPU."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.elsewhere import BUILT, BUNDLE, LIMIT, main, unmet
from tests.gpu.vllm_prewarm import judge

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"
COMPILED_ELSEWHERE = {
    "built": {
        "sees_cuda": False,
        "bundle": {"entries": 37, "missing_kernels": []},
        "recorded": {"lookups": {"compile": 21}, "cubins_before": 0, "cubins_after": 21},
    },
    "install": {"installed": 37, "another_path": True},
    **{
        name: {
            "completed": LIMIT,
            "lookups": {"disk": 21, "memory": 5},
            "cubins_before": 37,
            "cubins_after": 37,
            "cold_calls_after_ready": {"compile": 0, "disk": 3 if name == "installed" else 0},
        }
        for name in ("installed", "prewarmed")
    },
}


def verdict(found: dict[str, Any]) -> list[str]:
    return unmet(found["built"], found["install"], {name: found[name] for name in ("installed", "prewarmed")})


def test_what_compiled_nothing_elsewhere_is_good() -> None:
    assert verdict(COMPILED_ELSEWHERE) == []


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("built sees_cuda", True, "the machine that compiled saw a GPU"),
        ("built recorded cubins_after", 20, "recorded: 21 lookups compiled, and 20 binaries came of it"),
        ("built bundle missing_kernels", ["k"], "not in the bundle: variants of k"),
        ("install another_path", False, "the cache is at the path that it was compiled at"),
        ("install installed", 36, "36 of 37 kernels were installed"),
        ("installed completed", LIMIT - 1, f"installed: {LIMIT - 1} of {LIMIT} requests were answered"),
        ("installed lookups compile", 1, "installed: 1 lookups compiled"),
        ("prewarmed cubins_after", 38, "prewarmed: 1 binaries more in the cache"),
        ("prewarmed lookups disk", 0, "prewarmed: no lookup was answered by the cache"),
        ("prewarmed cold_calls_after_ready disk", 1, "prewarmed: 1 cold calls after ready"),
    ],
)
def test_what_is_not_good_elsewhere_is_named(place: str, value: object, says: str) -> None:
    found = copy.deepcopy(COMPILED_ELSEWHERE)
    *way, last = place.split()
    inner: Any = found
    for name in way:
        inner = inner[name]
    inner[last] = value
    assert verdict(found) == [says]


@pytest.mark.parametrize(
    ("words", "built", "says"),
    [
        ("build there/trace.csv --trace there/trace.csv", "", "there/trace.csv: is no folder"),
        ("build there --trace there/none.csv", "", "there/none.csv: no such file"),
        ("serve there --trace there/trace.csv --out none/out.json", "{}", "--out none/out.json: no file can be there"),
        ("serve there --trace there/trace.csv --out there", "{}", "--out there: no file can be there"),
        ("serve none --trace there/trace.csv --out out.json", "", "none/kernels.tpb: no such file; `build` leaves it"),
        ("serve there --trace there/trace.csv --out out.json", "{", "there/built.json: Expecting property name"),
        (
            "serve there --trace there/trace.csv --out out.json",
            "[]",
            "has no bundle, cache, recorded, sees_cuda, sha256",
        ),
    ],
)
def test_what_cannot_be_carried_elsewhere_is_refused_at_once(
    words: str,
    built: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["elsewhere", *words.split(), *["--device=compile-only:cuda:90"] * ("serve" in words)]
    )
    there = tmp_path / "there"
    there.mkdir()
    for name, text in (("trace.csv", "TIMESTAMP"), (BUNDLE, "PK"), (BUILT, built)):
        (there / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main())  # argparse exits by itself
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


@pytest.fixture(params=["vllm_prewarm.json", "vllm_prewarm_trace.json"])
def prewarmed(request: pytest.FixtureRequest) -> Any:
    return json.loads((MEASUREMENTS / request.param).read_text())


def test_a_first_request_that_waited_for_something_else_than_triton_is_told_and_no_fault(prewarmed: Any) -> None:
    rungs = prewarmed["ladder"]["requests"]
    unmet, others = judge(0, rungs, prewarmed["trace"])
    assert unmet == []
    assert len(others) == sum(rung["first_ttft_s"] > 1.3 * rung["hot_ttft_s"] for rung in rungs) > 0
    assert all(": 0.0 of the difference are cold calls, " in said for said in others)


def test_what_waited_for_triton_is_named(prewarmed: Any) -> None:
    first = prewarmed["ladder"]["requests"][0]
    first |= {"cold_before_first_token_s": 0.25, "first_ttft_s": 0.3, "hot_ttft_s": 0.018}
    (said,), _ = judge(0, prewarmed["ladder"]["requests"], prewarmed["trace"])
    assert said.startswith("17 x 1: 300.0 ms, hot 18.0: 250.0 of the difference are cold calls, ")


def test_cold_calls_missing_figures_and_a_slow_trace_are_named(prewarmed: Any) -> None:
    rungs, trace = prewarmed["ladder"]["requests"], prewarmed["trace"]
    rungs[1]["hot_requests"] = 0
    trace["summary"]["ttft"]["p99"] = 0.101
    unmet, _ = judge(2, rungs, trace)
    assert unmet == [
        "2 cold calls after ready",
        "128 x 1: no first time to a token, or no hot one to hold it against",
        "the trace's P99 TTFT is 101 ms, above 100",
    ]
    trace["summary"] |= {"completed": 199, "failed": {"timeout": 1}}
    assert judge(0, [], trace)[0] == ["199 of the trace's 200 requests were answered: {'timeout': 1}"]
    assert judge(0, [], {"failed": "no server", "good": False})[0] == ["the trace was not replayed: no server"]
