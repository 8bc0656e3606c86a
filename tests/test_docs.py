"""The documentation says what the code does: the metrics page is fresh, its queries parse, links lead somewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tritonprobe
import tritonprobe.testing
from docs import generate_metrics
from tests.conftest import require_tool
from tritonprobe.ledger.schema import METRICS, PREFIX
from tritonprobe.settings import Settings

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_metrics_page_is_up_to_date() -> None:
    assert generate_metrics.PAGE.read_text() == generate_metrics.page(), "stale; run: python docs/generate_metrics.py"


def test_a_stale_page_is_told_of(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(generate_metrics, "PAGE", tmp_path / "metrics.md")
    assert generate_metrics.main(["--check"]) == 1
    assert "metrics.md is stale" in capsys.readouterr().err
    assert generate_metrics.main([]) == 0
    assert generate_metrics.main(["--check"]) == 0


def test_queries_ask_for_metrics_that_exist() -> None:
    known = {PREFIX + metric.name for metric in METRICS}
    for _, query in generate_metrics.QUERIES:
        asked = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(rf"\b{PREFIX}\w+", query)}
        assert asked
        assert asked <= known


def test_queries_parse(tmp_path: Path) -> None:
    promtool = require_tool("promtool")
    rules = [{"record": f"docs:query:{i}", "expr": query} for i, (_, query) in enumerate(generate_metrics.QUERIES)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "docs", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.parametrize("module", [tritonprobe, tritonprobe.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module) -> None:
    page = REFERENCE.read_text()
    names = [name for name in module.__all__ if not name.startswith("__")]
    assert [name for name in names if not re.search(rf"`[^`]*\b{name}\b", page)] == []


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    rows = re.findall(r"^\| `(TRITONPROBE_\w+)` \| `(\w+)` \| (\S+) \|", REFERENCE.read_text(), re.MULTILINE)
    settings = [(f"TRITONPROBE_{field.name.upper()}", field.name) for field in dataclasses.fields(Settings)]
    assert [(variable, name) for variable, name, _ in rows] == settings
    # Read as the environment is, the page's defaults are the defaults.
    assert Settings.from_env({variable: default for variable, _, default in rows if default != "none"}) == Settings()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_ten_lines_of_the_readme_run(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    file = tmp_path / "ten_lines.py"
    # The server of the page is asked, in the same process, what it has to say.
    file.write_text(
        code.replace("serve()", "server = serve()") + "import urllib.request\n"
        "print(urllib.request.urlopen(server.url + '/metrics').read().decode())\n"
    )
    env = {**os.environ, "TRITONPROBE_PORT": "0", "TRITONPROBE_DEVICE": "compile-only:cuda:90"}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert 'tritonprobe_time_to_first_token_seconds_count{model="m"} 1.0' in done.stdout
