"""What others wrote reaches terminals and logs as one line of printable characters, and metrics as it is."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.story.stories import History, busy, cold_call
from tritonprobe.adapter.engines.host import log as engine_log
from tritonprobe.export import exposition
from tritonprobe.export.text import Run, console, show
from tritonprobe.incidents import ColdAfterReady, Incidents, OpFailures
from tritonprobe.ledger import MemoryLedger, schema
from tritonprobe.plain import all_plain, plain
from tritonprobe.story import tell

EVIL = "shop.[/red]\x1b[2J\x1b[31m\n\ud800:smile:"
PLAIN = "shop.[/red]\\x1b[2J\\x1b[31m\\n\\ud800:smile:"


@given(st.text(st.characters()))
def test_a_terminal_obeys_nothing_of_it(text: str) -> None:
    assert plain(text).isprintable()
    plain(text).encode()
    assert plain(plain(text)) == plain(text)


def test_what_is_printable_stays_as_it_is() -> None:
    assert plain("ein Größenfaktor: 3 µs, 漢字, [bold]") == "ein Größenfaktor: 3 µs, 漢字, [bold]"
    assert plain(EVIL) == PLAIN


def test_the_exception_of_an_op_keeps_its_lines_and_a_terminal_obeys_none_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise ValueError("here \x1b[31m\nand there")
    except ValueError as error:
        OpFailures().happened(EVIL, "compile_error", error)
    first, *rest = caplog.text.rstrip().splitlines()
    assert f"op {PLAIN} failed (compile_error)" in first
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-2:] == ["ValueError: here \\x1b[31m", "and there"]
    assert all(record.exc_info is None for record in caplog.records), "its frames would hold tensors"


def test_the_exception_of_an_op_is_a_warning_for_those_who_want_to_hear_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="tritonprobe"):
        OpFailures().happened("shop.matmul", "compile_error", ValueError())
    assert caplog.records == []


def test_a_story_is_made_plain_to_its_last_text() -> None:
    story = tell(busy())
    assert all_plain(story) == story
    evil = tell(History(cold_calls=[cold_call(EVIL, reasons=(EVIL,), bucket=EVIL)]))
    (call,) = evil.dearest
    assert (call.kernel, call.bucket, call.because) == (EVIL, EVIL, (EVIL,))
    (call,) = all_plain(evil).dearest
    assert (call.kernel, call.bucket, call.because) == (PLAIN, PLAIN, (PLAIN,))


def test_a_report_prints_names_and_reasons_as_they_can_be_read() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, (EVIL, EVIL), 40)
    history = History(ledger=ledger, cold_calls=[cold_call(EVIL, reasons=(EVIL,), bucket=EVIL)])
    file = io.StringIO()
    show([Run("cold", tell(history))], console(file))
    text = file.getvalue()
    assert all(line.isprintable() for line in text.splitlines())
    assert "[/red]\\x1b[2J" in text


@pytest.mark.parametrize("name", ["tritonprobe", "tritonprobe.engine"])
def test_each_record_of_the_log_is_one_plain_line(name: str) -> None:
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    log = logging.getLogger(name)
    log.addHandler(handler)
    try:
        log.warning("kernel %s", EVIL)
        try:
            raise ValueError(EVIL.replace("\n", "\r"))
        except ValueError:
            log.warning("a fault", exc_info=True)
    finally:
        log.removeHandler(handler)
    first, second, *traceback = file.getvalue().splitlines()
    assert (first, second) == (f"kernel {PLAIN}", "a fault")
    assert traceback[-1].startswith("ValueError: shop.[/red]\\x1b[2J")
    assert all(line.isprintable() for line in traceback)
    assert engine_log.name == "tritonprobe.engine"


def test_an_incident_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    Incidents("log").happened(cold_call(EVIL))
    assert [record.getMessage().partition(" was cold")[0] for record in caplog.records] == [
        f"tritonprobe: {PLAIN} M<=16"
    ]
    with pytest.raises(ColdAfterReady, match="x1b") as caught:
        Incidents("raise").happened(cold_call(EVIL))
    assert str(caught.value).isprintable()


def test_metrics_stay_exact() -> None:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, ("a\x1b[31m\nb", "all"), 3)
    assert b'kernel="a\x1b[31m\\nb"' in exposition.text(ledger.collect())
