"""What each path answers, whoever carries it."""

from __future__ import annotations

import json
import logging

import pytest

from tests.export.conftest import Probed
from tests.story.stories import busy
from tritonprobe.export.routes import Response, Source, respond
from tritonprobe.ledger import schema
from tritonprobe.story import from_json, tell, to_json


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


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/plain; charset=utf-8"),  # a browser's
        ("text/plain", "text/plain; charset=utf-8"),
        ("Text/HTML; q=1, application/json", "text/plain; charset=utf-8"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/plain;q=0.5, application/json", "application/json"),
        ("application/json;q=0.1, text/html;q=0.2", "text/plain; charset=utf-8"),
        ("text/plain;q=0", "application/json"),
        ("*/*", "application/json"),
        ("", "application/json"),
        (None, "application/json"),
    ],
)
def test_the_report_is_text_for_those_who_prefer_that(
    probed: Probed, accept: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for forced in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # that is about the server's own terminal
        monkeypatch.setenv(forced, "1")
    response = respond("/report", accept, Source(probed, report=lambda: to_json(tell(busy()))))
    assert (response.status, response.content_type) == (200, kind)
    if kind == "application/json":
        assert from_json(json.loads(response.body)) == tell(busy())
    else:
        assert b"\nthe dearest cold calls (so far); when: seconds from " in response.body
        assert b"\nTTFT  so far " in response.body
        assert b"\x1b" not in response.body


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
    assert b"Accept: text/plain" not in response.body  # there is no report
    assert b"Accept: text/plain" in ask("/", probed, report=dict).body


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
