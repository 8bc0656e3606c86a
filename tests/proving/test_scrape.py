"""A small measurement of a real exporter process: what it counts is what was put in."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tritonprobe.cli import main
from tritonprobe.ledger import schema
from tritonprobe.proving import scrape


@pytest.mark.parametrize("series", [1000, 20_000])
def test_a_scrape_is_whole_and_counted(series: int) -> None:
    found = scrape.measure(series=series, repeat=3, seed=0)

    born = sum(m.cost * len(m.created) for m in schema.METRICS)
    kernels = series // (3 * scrape.BUCKETS + 1)
    # For each bucket: launches, lookups that compiled, and the memory tier that follows from them.
    assert found.lines == born + kernels * (3 * scrape.BUCKETS + 1)
    assert len(found.seconds) == 3
    assert found.interval.low <= found.interval.median <= found.interval.high


def test_the_document_says_how_it_was_made() -> None:
    done = CliRunner().invoke(main, ["bench", "scrape", "--series", "1000", "--repeat", "2", "--json"])
    made = json.loads(done.stdout)
    assert made["command"] == "tritonprobe bench scrape --series 1000 --repeat 2 --seed 0 --json"
    assert len(made["seconds"]) == 2
    assert made["budget_seconds"] == 0.05
    assert done.exit_code in (0, 1)
