"""What each path answers, whoever carries it."""

from __future__ import annotations

import json
import logging

import pytest

from tests.export.conftest import Probed
from tritonprobe.export.routes import Response, Source, respond
from tritonprobe.ledger import schema


def ask(path: str, probed: Probed, **source: object) -> Response:
    return respond(path, None, Source(probed, **source))  # type: ignore[arg-type]  # tests pass only `report`


def test_metrics_are_the_ledger(probed: Probed) -> None:
    probed.ledger.add(schema.LAUNCHES, ("softmax", "N=8"), 5)
    response = ask("/metrics", probed)
    assert response.status == 200
    assert response.content_type.startswith("text/plain; version=0.0.4")
    assert b'tritonprobe_launches_total{bucket="N=8",kernel="softmax"} 5.0\n' in response.body


def test_metrics_speak_openmetrics_when_asked(probed: Probed) -> None:
    response = respond("/metrics", "application/openmetrics-text; version=1.0.0", Source(probed))
    assert response.content_type.startswith("application/openmetrics-text")


def test_ready_is_503_until_it_is_200_and_says_why(probed: Probed) -> None:
    before = ask("/ready", probed)
    assert (before.status, before.content_type) == (503, "application/json")
    assert json.loads(before.body) == {"ready": False, "because": "tritonprobe.ready() was not called yet"}
    probed.ready_unix_ns = 1_790_000_000_500_000_000
    after = ask("/ready", probed)
    assert after.status == 200
    assert json.loads(after.body) == {
        "ready": True,
        "because": "tritonprobe.ready() was called",
        "since_unix_seconds": 1790000000.5,
    }


def test_the_report_is_whatever_the_server_was_given(probed: Probed) -> None:
    response = ask("/report", probed, report=lambda: {"cold_seconds": 1.5})
    assert (response.status, response.content_type) == (200, "application/json")
    assert json.loads(response.body) == {"cold_seconds": 1.5}


@pytest.mark.parametrize("path", ["/report", "/metric", "/metrics/", "/../etc/passwd", "", "//", "/ready/now"])
def test_anything_else_is_404_and_names_the_paths(path: str, probed: Probed) -> None:
    response = ask(path, probed)
    assert response.status == 404
    assert b"/metrics" in response.body


def test_without_a_report_it_says_who_has_one(probed: Probed) -> None:
    assert ask("/report", probed).body.startswith(b"no report here: single calls and requests stay in the probed")


def test_the_index_names_the_paths(probed: Probed) -> None:
    response = ask("/", probed)
    assert response.status == 200
    assert response.content_type == "text/plain; charset=utf-8"
    assert b"/ready" in response.body


def test_a_query_changes_nothing(probed: Probed) -> None:
    assert ask("/metrics?name[]=up", probed) == ask("/metrics", probed)


def test_a_report_that_fails_is_a_500_and_a_fault_of_ours(probed: Probed, caplog: pytest.LogCaptureFixture) -> None:
    def report() -> object:
        raise KeyError("phase")

    with caplog.at_level(logging.WARNING, logger="tritonprobe"):
        response = ask("/report", probed, report=report)
    assert response.status == 500
    assert response.body == b"/report failed: KeyError; see the log\n"
    assert "KeyError: 'phase'" in caplog.text
    assert b'tritonprobe_errors_total{part="export"} 1.0\n' in ask("/metrics", probed).body
