"""docs/tracing.md tells of every span and attribute that there is."""

from __future__ import annotations

import re
from pathlib import Path

from tritonprobe.export.otel import conventions, metrics, spans
from tritonprobe.ledger import schema

PAGE = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()
NAMES = {name: value for name, value in vars(conventions).items() if name.isupper() and name != "SCOPE"}


def test_every_name_is_on_the_page():
    assert [value for value in NAMES.values() if not re.search(rf"`{re.escape(value)}\b", PAGE)] == []


def test_the_page_names_no_attribute_that_does_not_exist():
    told = set(
        re.findall(r"`((?:tritonprobe|gen_ai)\.[\w.]+)`", PAGE.partition("## Attributes")[2].partition("## Metrics")[0])
    )
    assert {name for name in told if not any(name.startswith(value) for value in NAMES.values())} == set()


def test_the_bounds_on_the_page_are_the_codes():
    bounds = " ".join(PAGE.partition("## Bounds")[2].split())
    for number in (spans.MAX_LINKS, spans.MAX_STALLS, spans.BURST, spans.A_SECOND):
        assert str(number) in bounds
    assert metrics.name_of(schema.LAUNCHES) in PAGE
    assert metrics.name_of(schema.EXPOSURE) in PAGE
