"""Files that say anything: each verb prints plain lines, or one line of what is wrong, with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("zstandard")

from tests.damage import damaged
from tests.prewarming.caches import add_entry
from tests.prewarming.tampering import edit, members_of
from tests.shapes.censuses import FULL
from tritonprobe.cli import main
from tritonprobe.cli.run import NOT_FOUND
from tritonprobe.prewarming.bundle import pack

EVIL = "shop.[/red]\x1b[2J\n\ud800"
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


def ran(*words: str | Path) -> Result:
    """What a verb printed: whatever it read, nothing but plain lines, and no traceback."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert done.exit_code in (0, 1, 2, NOT_FOUND)
    if done.exit_code == 2:
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
    assert all(line.isprintable() for line in done.output.split("\n"))
    return done


@given(st.data())
@REUSED
def test_no_census_ends_a_verb_with_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    file, good, merged = tmp_path / "census.json", tmp_path / "good.json", tmp_path / "merged.json"
    file.write_text(json.dumps(data.draw(damaged(FULL))))
    good.write_text(json.dumps(FULL))
    ran("census", "show", file)
    if ran("census", "show", "--json", file).exit_code == 0:
        assert ran("census", "merge", good, file, "-o", merged).exit_code == 0
        assert ran("census", "show", merged).exit_code == 0
    ran("census", "diff", good, file)
    ran("bundle", "pack", "--census", file, "--cache", tmp_path, "--target", "cuda:90", "-o", tmp_path / "b.tpb")
    if ran("run", "--prewarm", file, "--", "no-such-command").exit_code == NOT_FOUND:
        assert ran("census", "show", file).exit_code == 0


@given(st.data())
@REUSED
@pytest.mark.usefixtures("environment")
def test_no_bundle_ends_a_verb_with_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "cache").exists():
        add_entry(tmp_path / "cache", "add")
        pack(str(tmp_path / "b.tpb"), tmp_path / "cache")
    (_, text), *_ = members_of(tmp_path / "b.tpb")
    changed = data.draw(damaged(json.loads(text)))
    edited = edit(tmp_path / "b.tpb", tmp_path, manifest=lambda _: changed)
    ran("bundle", "show", edited)
    ran("bundle", "show", "--json", edited)
    ran("bundle", "install", edited, "--cache", tmp_path / "there")


def test_names_are_shown_as_they_can_be_read(tmp_path: Path) -> None:
    document: dict[str, Any] = {**FULL, "launches": {EVIL: {EVIL: 3}}, "dropped": {EVIL: 1}}
    document["entries"] = [{**FULL["entries"][0], "kernel": EVIL, "classes": [[EVIL, EVIL]]}]
    file, good = tmp_path / "census.json", tmp_path / "good.json"
    file.write_text(json.dumps(document))
    good.write_text(json.dumps(FULL))
    for shown in (ran("census", "show", file).stdout, ran("census", "diff", good, file).stdout):
        assert "shop.[/red]\\x1b[2J\\n\\ud800" in shown
    kernels = json.loads(ran("census", "show", "--json", file).stdout)["kernels"]
    assert [row["kernel"] for row in kernels] == [EVIL]
