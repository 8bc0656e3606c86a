"""A real Prometheus answers every query of the board, from what a real ledger served."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from grafana.board import board
from tests.grafana.conftest import MATMUL, SOFTMAX, Grafana
from tritonprobe.ledger.schema import PREFIX

BOARD = board()
PANELS = {panel["title"]: panel for panel in BOARD["panels"] if panel["type"] != "row"}


def answers(grafana: Grafana, title: str, **chosen: str) -> list[dict[tuple[str, ...], float]]:
    """The last value of each series, by its labels' values; one dict a target. NaN is nothing."""
    found = []
    for target in PANELS[title]["targets"]:
        series = grafana.ask(target, **chosen)
        found.append(
            {
                tuple(s["metric"][label] for label in sorted(s["metric"])): float(s["values"][-1][1])
                for s in series
                if not math.isnan(float(s["values"][-1][1]))
            }
        )
    return found


def number(grafana: Grafana, title: str) -> float:
    (found,) = answers(grafana, title)
    (value,) = found.values()
    return value


@pytest.mark.parametrize("title", PANELS)
def test_every_query_finds_something(grafana: Grafana, title: str) -> None:
    for target in PANELS[title]["targets"]:
        series = grafana.ask(target)
        values = [float(value) for s in series for _, value in s["values"]]
        remote = 'tier="remote"' in target["expr"]  # no cache is shared between machines here
        assert remote or [v for v in values if math.isfinite(v)], grafana.interpolate(target["expr"])


def test_the_glance(grafana: Grafana) -> None:
    assert answers(grafana, "Servers") == [{(): 1}, {(): 1}]
    assert round(number(grafana, "Incidents")) == 2
    # Both requests took 3 s, between the bounds 2.5 and 5: interpolated near the upper one.
    assert 2.5 < number(grafana, "TTFT P99") <= 5
    assert number(grafana, "Stalled requests") == pytest.approx(1 / 3)  # the one whose batch it was, of three
    assert 90 <= number(grafana, "Cold call now") < 200
    assert number(grafana, "On a fallback") == pytest.approx(2 / 42)
    assert number(grafana, "Own faults") == 1


def test_incidents_are_named_although_their_series_are_born_with_them(grafana: Grafana) -> None:
    incidents = {("M<=32", MATMUL, "compile"): 1, ("N<=64", SOFTMAX, "disk"): 1}
    instances = incidents  # there is one server
    assert answers(grafana, "Incidents: cold calls after ready, by kernel, bucket and tier") == [incidents, instances]


def test_stalls_are_told_apart_by_how_a_request_waited(grafana: Grafana) -> None:
    panel = PANELS["Time to first token, and the stall before it"]
    named = {t["legendFormat"]: [float(v) for s in grafana.ask(t) for _, v in s["values"]] for t in panel["targets"]}
    for name in ("stall in its own batch", "stall while it queued"):
        assert 2.5 < max(v for v in named[name] if not math.isnan(v)) <= 5, name


def test_missed_objectives_say_whether_cold_calls_are_to_blame(grafana: Grafana) -> None:
    """The objective of 2.5 s: two stood behind the compile, and one gave up by itself. That of 10 s all met."""
    cold, other = (
        {(s["metric"]["slo"], float(v)) for s in grafana.ask(t) for _, v in s["values"]}
        for t in PANELS["Missed objectives"]["targets"]
    )
    assert cold == {("2.5", 2.0)}
    assert other == {("2.5", 1.0)}


def test_the_parts_of_a_life_are_told_apart(grafana: Grafana) -> None:
    (target,) = PANELS["Where requests spend their time"]["targets"]
    assert {s["metric"]["portion"] for s in grafana.ask(target)} == {
        "queue", "execution", "exposure", "fallback", "remainder",
    }  # fmt: skip


def test_launches_and_tiers_by_kernel_and_bucket(grafana: Grafana) -> None:
    title = "Launches and tiers by kernel and bucket"
    heads = [target["legendFormat"] for target in PANELS[title]["targets"]]
    table = dict(zip(heads, answers(grafana, title), strict=True))
    matmul = ("M<=32", MATMUL)
    # Born within the range: the whole count, to the unit.
    assert table["launches"][matmul] == 301
    assert table["trials"] == {matmul: 12}
    assert table["warm-ups"] == {("M<=16", MATMUL): 1}
    assert table["compile"] == {matmul: 1, ("M<=16", MATMUL): 1}
    assert table["disk"] == {("N<=1024", SOFTMAX): 1, ("N<=64", SOFTMAX): 1}
    assert table["failed"] == {matmul: 1}
    assert 0.99 < table["in memory"][matmul] < 1


def test_cold_time_by_phase_is_what_was_measured(grafana: Grafana) -> None:
    (by_kernel,) = answers(grafana, "Cold time by kernel")
    assert by_kernel == {(MATMUL,): pytest.approx(3.4), (SOFTMAX,): pytest.approx(0.53)}
    (startup,) = answers(grafana, "Cold time before ready, by phase")
    assert startup == {("ptx",): 0.3, ("frontend",): 0.1, ("cache_read",): 0.02, ("module_load",): 0.01}


@pytest.mark.parametrize("kernel", [MATMUL, SOFTMAX])
def test_a_chosen_kernel_is_the_only_one_shown(grafana: Grafana, kernel: str) -> None:
    chosen = re.escape(kernel).replace("\\", "\\\\")  # as Grafana escapes it, inside a PromQL string
    shown = set()
    for panel in PANELS.values():
        for target in panel["targets"]:
            if "$kernel" in target["expr"]:
                shown |= {s["metric"].get("kernel", kernel) for s in grafana.ask(target, kernel=chosen)}
    assert shown == {kernel}


@pytest.mark.parametrize("variable", BOARD["templating"]["list"][1:], ids=lambda v: v["name"])
def test_variables_offer_what_is_there(grafana: Grafana, variable: dict[str, Any]) -> None:
    query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert query is not None
    match, label = grafana.interpolate(query[1]), query[2]
    offered = grafana.get(f"label/{label}/values", **{"match[]": match.replace("{}", "")})
    assert (
        offered
        == {
            "job": ["llm"],
            "instance": [grafana.get("targets")["activeTargets"][0]["labels"]["instance"]],
            "kernel": [MATMUL, SOFTMAX],
            "model": ["m"],
        }[label]
    )


def test_the_annotation_marks_when_the_server_became_ready(grafana: Grafana) -> None:
    (annotation,) = BOARD["annotations"]["list"]
    found = grafana.ask({"expr": annotation["expr"], "instant": True})
    (stored,) = grafana.prometheus.query(f"{PREFIX}ready_timestamp_seconds").values()
    assert [float(s["values"][0][1]) for s in found] == [pytest.approx(stored * 1000)]
