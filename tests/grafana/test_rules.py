"""Rules: sound, unit-tested both ways, evaluated by a real Prometheus; each alert has a page that says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from grafana.board import board
from tests.conftest import require_tool
from tests.grafana.conftest import ROOT, RULES, Grafana
from tests.grafana.test_board import EXPOSED
from tritonprobe.ledger.schema import PREFIX

UNIT_TESTS = sorted((RULES / "tests").glob("*.yaml"))
ALERTS = re.findall(r"- alert: (\w+)", (RULES / "alerts.yaml").read_text())
RECORDED = re.findall(r"- record: (\S+)", (RULES / "recording.yaml").read_text())
RUNBOOKS = ROOT / "docs" / "runbooks"


def promtool(*arguments: str | Path, cwd: Path = RULES) -> subprocess.CompletedProcess[str]:
    program = require_tool("promtool")
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rules(grafana: Grafana) -> list[dict[str, Any]]:
    """The rules as a real Prometheus understood them, evaluated at least once."""
    deadline = time.monotonic() + 10
    while True:
        found = [rule for group in grafana.get("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_rules_are_sound() -> None:
    done = promtool("check", "rules", "recording.yaml", "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
    assert f"{len(RECORDED)} rules found" in done.stdout


def test_unit_tests_pass() -> None:
    done = promtool("test", "rules", *UNIT_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(UNIT_TESTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_seen_to_fire_and_to_stay_quiet(alert: str) -> None:
    text = "".join(file.read_text() for file in UNIT_TESTS)
    cases = re.findall(rf"alertname: {alert}\n +exp_alerts:(.*)", text)
    assert " []" in cases
    assert "" in cases


@pytest.mark.parametrize(("expression", "expected"), [("vector(0) > 1", "exp:[\n"), ("vector(1)", "exp:[],")])
def test_unit_tests_notice_an_alert_that_is_blind_or_always_on(
    rules: list[dict[str, Any]], tmp_path: Path, expression: str, expected: str
) -> None:
    """Every alert made blind, then every alert made to fire at once: each one must be named as failed."""
    broken = [
        {"alert": rule["name"], "expr": expression, "labels": rule["labels"], "annotations": rule["annotations"]}
        for rule in rules
        if rule["type"] == "alerting"
    ]
    shutil.copytree(RULES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "alerts.yaml").write_text(json.dumps({"groups": [{"name": "broken", "rules": broken}]}))
    done = promtool("test", "rules", *(f"tests/{file.name}" for file in UNIT_TESTS), cwd=tmp_path)
    assert done.returncode != 0
    said = re.sub(r" *\n *", "\n", done.stdout + done.stderr)
    failed = set(re.findall(rf"alertname: (\w+), time: \w+, *\n?{re.escape(expected)}", said))
    assert failed == set(ALERTS)


def test_prometheus_evaluates_every_rule(rules: list[dict[str, Any]]) -> None:
    assert sorted(rule["name"] for rule in rules) == sorted(ALERTS + RECORDED)
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_alerts_see_what_happened_to_the_server(grafana: Grafana) -> None:
    """What went wrong is pending within seconds; what needs hours of requests is not."""
    expected = {
        "TritonprobeColdCallsAfterReady",
        "TritonprobeColdCallInProgress",
        "TritonprobeFallbackAfterFailure",
        "TritonprobeFaults",
        "TritonprobeLaunchErrors",
        "TritonprobeSeriesDropped",
    }
    deadline = time.monotonic() + 10
    seen: set[str] = set()
    while seen != expected and time.monotonic() < deadline:
        seen = {alert["labels"]["alertname"] for alert in grafana.get("alerts")["alerts"]}
        time.sleep(0.1)
    assert seen == expected


def test_rules_ask_for_what_is_exposed_or_recorded(rules: list[dict[str, Any]]) -> None:
    known = EXPOSED | set(RECORDED)
    asked = {
        name for rule in rules for name in re.findall(rf"[\w:]*\b{PREFIX}[\w:]+|\w+:{PREFIX}[\w:]+", rule["query"])
    }
    assert asked
    assert asked <= known


def test_recording_rules_are_named_by_level_metric_and_operations_and_are_needed(rules: list[dict[str, Any]]) -> None:
    alerts = " ".join(rule["query"] for rule in rules if rule["type"] == "alerting")
    for name in RECORDED:
        level, metric, operations = name.split(":")
        assert level in {"job", "job_op"}
        assert metric.startswith(PREFIX)
        assert operations
        assert name in alerts


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_to_do(rules: list[dict[str, Any]], alert: str) -> None:
    (rule,) = [rule for rule in rules if rule["name"] == alert]
    assert rule["duration"] > 0
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url", "dashboard"}
    page = ROOT / annotations["runbook_url"]
    assert page.parent == RUNBOOKS
    assert alert in page.read_text()
    path, _, query = annotations["dashboard"].partition("?")
    assert path == f"/d/{board()['uid']}"
    variables = {variable["name"] for variable in board()["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", query)) <= variables


def test_every_runbook_is_an_alerts(rules: list[dict[str, Any]]) -> None:
    used = {rule["annotations"]["runbook_url"] for rule in rules if rule["type"] == "alerting"}
    assert {str(page.relative_to(ROOT)) for page in RUNBOOKS.glob("*.md")} == used


@pytest.mark.parametrize("page", [ROOT / "docs" / "grafana.md", *sorted(RUNBOOKS.glob("*.md"))], ids=lambda p: p.name)
def test_pages_name_what_exists(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(rf"(?<![\w:]){PREFIX}\w+(?=[{{\[)])", text)) <= EXPOSED
    assert set(re.findall(r"\bTritonprobe\w+", text)) <= set(ALERTS)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), target
