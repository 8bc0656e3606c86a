"""A small measurement of real steps: what it says it did, it did."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tritonprobe.bus import Bus
from tritonprobe.cli import main
from tritonprobe.export.otel_off import listener
from tritonprobe.proving import steps
from tritonprobe.requests import Requests


def test_every_batch_is_measured_alone_and_with_peers() -> None:
    found = steps.measure(rounds=2, seed=0, listener=listener)
    shapes = [(p, kind, n) for p in (0, steps.PEERS) for kind in steps.KINDS for n in steps.SIZES]
    assert [(b.peers, b.kind, b.size) for b in found.batches] == shapes
    assert all(b.tracer and len(b.rounds) == 2 for b in found.batches)
    assert all(b.interval.low <= b.interval.median <= b.interval.high for b in found.batches)
    alone = {(b.kind, b.size): b.interval.median for b in found.batches if not b.peers}
    assert alone["pairs", 256] > alone["pairs", 1]  # each pair is looked at


@pytest.mark.parametrize(
    ("kind", "is_left"),
    [("changing", [2, 3, 4, 9]), ("replaced", [1, 2, 9, 4]), ("condensed", [1, 2, 4, 9])],
)
def test_somebody_leaves_and_somebody_comes(kind: str, is_left: list[int]) -> None:
    requests = Requests(Bus())
    running = [requests.request(str(i)) for i in (1, 2, 3, 4)]
    gone = steps._take_over(kind, running, 2, requests.request("9"))
    assert [request.id for request in running] == [str(i) for i in is_left]
    assert gone.id == ("1" if kind == "changing" else "3")


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


def test_one_request_is_one() -> None:
    said = CliRunner().invoke(main, ["bench", "steps", "--rounds", "2"]).stdout
    assert " 1 request, " in said
    assert " 1 requests" not in said
