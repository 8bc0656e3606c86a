"""A small measurement of real steps: what it says it did, it did."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tritonprobe.cli import main
from tritonprobe.export.otel_off import listener
from tritonprobe.proving import steps


def test_every_batch_is_measured_alone_and_with_peers() -> None:
    found = steps.measure(rounds=2, seed=0, listener=listener)
    shapes = [(p, kind, n) for p in (0, steps.PEERS) for kind in steps.KINDS for n in steps.SIZES]
    assert [(b.peers, b.kind, b.size) for b in found.batches] == shapes
    assert all(b.tracer and len(b.rounds) == 2 for b in found.batches)
    assert all(b.interval.low <= b.interval.median <= b.interval.high for b in found.batches)
    alone = {(b.kind, b.size): b.interval.median for b in found.batches if not b.peers}
    assert alone["changing", 256] > alone["changing", 1]  # each request has its share
    assert alone["changing", 256] > 2 * alone["same", 256]  # and here it has next to none


def test_without_opentelemetry_it_says_so() -> None:
    found = steps.measure(rounds=2, seed=0, listener=lambda waiting: None)
    assert found.batches[0].how == "alone, no tracer installed"


def test_the_document_says_how_it_was_made() -> None:
    done = CliRunner().invoke(main, ["bench", "steps", "--rounds", "2", "--json"])
    made = json.loads(done.stdout)
    assert made["command"] == "tritonprobe bench steps --rounds 2 --seed 0 --json"
    assert made["budget_us"] == 5.0
    assert len(made["batches"]) == 2 * len(steps.KINDS) * len(steps.SIZES)
    assert done.exit_code == (0 if made["kept"] else 1)
