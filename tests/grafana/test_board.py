"""The board's JSON: fresh, well formed, and every panel says what a reader needs to know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from grafana import generate
from grafana.board import board
from tests.grafana.conftest import ROOT
from tritonprobe.ledger.schema import METRICS, PREFIX

BOARD = json.loads(generate.BOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPOSED = {
    f"{PREFIX}{metric.name}{part}"
    for metric in METRICS
    for part in {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}.get(metric.kind, ("",))
}
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])

# What Grafana's own schema says of the fields that every panel has.
FIELDS: dict[str, type | tuple[type, ...]] = {
    "datasource": dict,
    "description": str,
    "fieldConfig": dict,
    "gridPos": dict,
    "id": int,
    "options": dict,
    "pluginVersion": str,
    "targets": list,
    "title": str,
    "transformations": list,
    "type": str,
}


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the JSON, at any depth."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from parts(child)


def test_the_board_is_up_to_date() -> None:
    assert generate.BOARD.read_text() == generate.text(), "stale; run: python -m grafana.generate"


def test_generating_twice_gives_the_same() -> None:
    assert json.dumps(board()) == json.dumps(board())


def test_a_stale_board_is_told_of(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(generate, "BOARD", tmp_path / "board.json")
    assert generate.main(["--check"]) == 1
    assert "board.json is stale; run: python -m grafana.generate" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert generate.main(["--chekc"]) == 2


def test_the_board_as_a_whole() -> None:
    assert BOARD["id"] is None
    assert BOARD["uid"] == "tritonprobe-overview"
    assert " / " in BOARD["title"]
    assert "tritonprobe" in BOARD["tags"]
    assert BOARD["schemaVersion"] == 41


def test_ids_and_titles_are_unique() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    titles = [panel["title"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)


def test_panels_do_not_overlap() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        return {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }

    for one, other in combinations(BOARD["panels"], 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in BOARD["panels"]) == 24


def test_variables_are_chained_and_take_several_values() -> None:
    first, *others = BOARD["templating"]["list"]
    assert (first["name"], first["type"]) == ("datasource", "datasource")
    assert [variable["name"] for variable in others] == ["job", "instance", "kernel", "model"]
    for variable in others:
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] in {".+", ".*"}
        assert variable["query"]["query"] == variable["definition"]
    assert '{job=~"$job"}' in others[1]["definition"]
    assert '{job=~"$job", instance=~"$instance"}' in others[2]["definition"]


def test_the_data_source_is_the_variable_everywhere() -> None:
    sources = [part["datasource"] for part in parts(BOARD) if "datasource" in part]
    assert len(sources) > 2 * len(PANELS)
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


@each_panel
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    for name, kind in FIELDS.items():
        assert isinstance(panel[name], kind), name
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["noValue"]
    steps = defaults["thresholds"]["steps"]
    assert steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(values)


@each_panel
def test_targets_are_told_apart(panel: dict[str, Any]) -> None:
    names = [target["refId"] for target in panel["targets"]]
    assert names == [chr(ord("A") + i) for i in range(len(names))]
    assert all(target["instant"] != target["range"] for target in panel["targets"])


@each_panel
def test_overrides_and_columns_meet_fields_that_exist(panel: dict[str, Any]) -> None:
    """A table's columns are renamed; what an override is for is called as after that."""
    if panel["type"] != "table":
        return
    tidy = panel["transformations"][-1]["options"]
    shown = {tidy["renameByName"].get(name, name) for name in tidy["indexByName"] if name not in tidy["excludeByName"]}
    overridden = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert overridden <= shown
    assert {sort["displayName"] for sort in panel["options"]["sortBy"]} <= shown


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_exposed(query: str) -> None:
    asked = set(re.findall(rf"\b{PREFIX}\w+", query))
    assert asked
    assert asked <= EXPOSED


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_takes_its_window_from_grafana_and_its_targets_from_the_variables(query: str) -> None:
    assert set(re.findall(r"\brate\(.*?\[(.*?)\]", query)) <= {"$__rate_interval"}
    assert set(re.findall(r"\[(.*?)\]", query)) <= {"$__rate_interval", "$__range"}
    for selector in re.findall(r"\{(.*?)\}", query):
        assert selector.startswith('job=~"$job", instance=~"$instance"')


def test_every_metric_is_on_the_board() -> None:
    asked = {name for query in QUERIES for name in re.findall(rf"\b{PREFIX}(\w+)", query)}
    assert {metric.name for metric in METRICS if not any(name.startswith(metric.name) for name in asked)} == set()


def test_links_lead_to_this_board_and_keep_what_was_chosen() -> None:
    links = [part["url"] for part in parts(BOARD) if "url" in part]
    assert links
    for link in links:
        path, _, query = link.partition("?")
        assert path == f"/d/{BOARD['uid']}"
        assert "${__url_time_range}" in query
        assert "${datasource:queryparam}" in query
        names = set(re.findall(r"var-(\w+)=", query)) | set(re.findall(r"\{(\w+):queryparam\}", query))
        assert names == {variable["name"] for variable in BOARD["templating"]["list"]}


def test_provisioning_finds_its_parts() -> None:
    provisioning = ROOT / "grafana" / "provisioning"
    source = (provisioning / "datasources" / "prometheus.yaml").read_text()
    assert re.findall(r"^ +type: (\w+)$", source, re.MULTILINE) == ["prometheus"]
    provider = (provisioning / "dashboards" / "tritonprobe.yaml").read_text()
    assert re.findall(r"^ +type: (\w+)$", provider, re.MULTILINE) == ["file"]
    path = re.search(r"^ +path: (\S+)$", provider, re.MULTILINE)
    assert path is not None
    assert path[1] in (ROOT / "docs" / "grafana.md").read_text()
