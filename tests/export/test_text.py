"""The report: one run, or a cold and a warm one side by side, in plain text that a person can read anywhere."""

from __future__ import annotations

import io
import itertools
import re

import pytest

from tests.story.stories import MATMUL, History, busy, cold_call
from tritonprobe.export import why
from tritonprobe.export.text import Run, console, duration, show
from tritonprobe.ledger import MemoryLedger, schema
from tritonprobe.story import tell
from tritonprobe.traffic.latency import Percentiles


def screen(*runs: Run, width: int | None = None) -> str:
    file = io.StringIO()
    to = console(file)
    if width is not None:
        to.width = width
    show(runs, to)
    return file.getvalue()


@pytest.fixture
def cold() -> Run:
    return Run("cold", tell(busy()), ttft=Percentiles.of([0.2, 4.1]), tpot=Percentiles.of([0.010]))


@pytest.fixture
def warm() -> Run:
    ledger = MemoryLedger()
    ledger.add(schema.LAUNCHES, (MATMUL, "M<=16"), 40)
    ledger.add(schema.LOOKUPS, (MATMUL, "M<=16", "disk"), 1)
    ledger.add(schema.COLD_SECONDS, (MATMUL, "cache_read", "0"), 0.3)
    ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.3)
    return Run("warm", tell(History(ledger=ledger)), ttft=Percentiles.of([0.1, 0.3]), tpot=Percentiles.of([]))


def test_a_cold_and_a_warm_run_stand_side_by_side(cold: Run, warm: Run) -> None:
    lines = screen(cold, warm).splitlines()
    text = "\n".join(lines)
    assert lines[0] == "compile-only:cuda:90, triton 3.6.0"
    total = next(line for line in lines if line.startswith("all"))
    assert re.split(r"\s{2,}", total) == ["all", "3.0 s", "300 ms"]
    assert "cold: 2 cold calls, 2 after ready; 1 loaded from disk, 1 compiled" in lines
    assert "warm: 1 cold call, 0 after ready; 1 loaded from disk" in lines
    ttft = [line.split() for line in lines if line.startswith("TTFT")]
    assert ttft == [
        ["TTFT", "cold", "200", "ms", "4.1", "s", "4.1", "s", "2"],
        ["TTFT", "warm", "100", "ms", "300", "ms", "300", "ms", "2"],
    ]
    assert ["TPOT", "warm", "-", "-", "-", "0"] in [line.split() for line in lines]
    assert "cold: the request at P99: TTFT 3.1 s, of which up to 3.0 s in a stall" in text
    assert next(line for line in lines if line.startswith("matmul_kernel")).split() == [
        "matmul_kernel", "M<=16", "40", "1", "0", "40", "0", "1",
    ]  # fmt: skip


def test_a_cold_call_that_raised_is_not_said_to_be_compiled() -> None:
    history = busy()
    for tier in ("compile", "compile", "remote"):
        history.ledger.observe(schema.COLD_CALL_SECONDS, (tier,), 0.5)
        history.ledger.add(schema.COLD_RAISED, (tier,))
    lines = screen(Run("now", tell(history))).splitlines()
    assert "now: 5 cold calls, 2 after ready; 1 loaded from disk, 1 compiled, 3 raised" in lines


def test_what_is_not_measured_is_said(cold: Run) -> None:
    text = screen(cold)
    assert "not measured  GPU times, and what a GPU adds to" in text


def test_bars_have_the_length_of_their_share(cold: Run, warm: Run) -> None:
    bars = {line.split()[0]: line.count("█") for line in screen(cold, warm).splitlines() if "█" in line}
    assert bars["cubin"] > 20
    assert bars["frontend"] == bars["cubin"] // 2


def test_what_took_little_time_is_never_without_a_mark(cold: Run) -> None:
    row = next(line for line in screen(cold).splitlines() if line.startswith("brand_new_stage"))
    *_, mark = row.split()
    assert mark in "▏▎▍▌▋▊▉"


def test_a_cold_call_says_why_and_who_waited(cold: Run) -> None:
    lines = screen(cold).splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:1] == ["+0.1"])
    assert lines[place].split() == ["+0.1", "matmul_kernel", "M<=16", "compile", "3.0", "s", "2"]
    assert lines[place + 1].strip() == "because n: %16 -> ==1; constexpr S: 1024 -> 1025"


def test_a_long_reason_goes_on_in_the_next_line() -> None:
    reasons = tuple(f"constexpr A_LONG_NAME_{i}: 1024 -> 1025" for i in range(4))
    lines = screen(Run("now", tell(History(cold_calls=(cold_call(reasons=reasons),)))), width=80).splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip().startswith("because"))
    assert " ".join(" ".join(lines[place : place + 3]).split()) == "because " + "; ".join(reasons)


def test_the_words_of_reasons_are_explained(cold: Run) -> None:
    assert why.LEGEND in screen(cold).splitlines()


def test_the_last_lines_are_what_clients_saw(cold: Run, warm: Run) -> None:
    *_, table, ttft, _, _, _, slowest = screen(cold, warm).splitlines()
    assert table.startswith("as the client saw it")
    assert ttft.startswith("TTFT  cold")
    assert slowest.startswith("cold: the request at P99: TTFT 3.1 s")


def test_two_runs_say_why_their_launches_differ(cold: Run, warm: Run) -> None:
    said = "Launches differ between runs"
    assert said in screen(cold, warm)
    assert said not in screen(cold)


def test_lines_of_a_pipe_end_where_their_text_ends(cold: Run, warm: Run) -> None:
    assert [line for line in screen(cold, warm).splitlines() if line != line.rstrip()] == []


def test_one_run_shows_what_the_server_saw_when_no_client_did() -> None:
    lines = screen(Run("now", tell(busy()))).splitlines()
    assert any(line.startswith("as the server saw it") for line in lines)
    assert next(line for line in lines if line.startswith("TTFT")).split()[-1] == "2"


def test_fallbacks_are_named_or_said_to_be_none(cold: Run, warm: Run) -> None:
    assert "fallbacks  cold: shop.matmul 2 x unsupported_dtype" in screen(cold, warm)
    assert "fallbacks  none" in screen(warm)


def fallen(*reasons: tuple[str, str, int]) -> Run:
    ledger = MemoryLedger()
    for op, reason, count in reasons:
        ledger.add(schema.OP_CALLS, (op, "all", "fallback"), count)
        ledger.add(schema.FALLBACKS, (op, "all", reason), count)
    return Run("so far", tell(History(ledger=ledger)))


def lines_of_fallbacks(run: Run) -> list[str]:
    lines = screen(run).splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("fallbacks"))
    return [lines[begin], *itertools.takewhile(lambda line: line.startswith(" "), lines[begin + 1 :])]


def test_fallbacks_of_one_run_are_one_a_line_and_do_not_repeat_its_name() -> None:
    run = fallen(("shop.add", "unsupported_dtype", 2), ("shop.mul", "compile_error", 3), ("shop.add", "rare", 1))
    assert lines_of_fallbacks(run) == [
        "fallbacks  shop.mul 3 x compile_error",
        "           shop.add 2 x unsupported_dtype",
        "           shop.add 1 x rare",
    ]


def test_fallbacks_beyond_what_a_reader_reads_are_summed() -> None:
    lines = lines_of_fallbacks(fallen(*((f"shop.op{n}", "rare", n) for n in range(1, 13))))
    assert len(lines) == 11
    assert lines[0] == "fallbacks  shop.op12 12 x rare"
    assert lines[-1] == "           3 others"


def test_remedies_carry_their_seconds_and_kernels(cold: Run) -> None:
    text = screen(cold)
    assert "what would make it stop (cold); the seconds overlap" in text
    assert "3.0 s  matmul_kernel: Keep TRITON_CACHE_DIR on a volume" in text


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_its_width_and_keeps_its_numbers(cold: Run, warm: Run, width: int) -> None:
    lines = screen(cold, warm, width=width).splitlines()
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("matmul_kernel"))
    assert row.split()[-6:] == ["40", "1", "0", "40", "0", "1"]


def test_kernels_of_the_same_name_keep_their_modules() -> None:
    ledger = MemoryLedger()
    for kernel in ("a.add", "b.add"):
        ledger.add(schema.LAUNCHES, (kernel, "all"), 1)
    text = screen(Run("now", tell(History(ledger=ledger))))
    assert "a.add" in text
    assert "b.add" in text


def test_plain_text_has_no_escape_codes(cold: Run) -> None:
    assert "\x1b" not in screen(cold)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.0000379, "37.9 us"),
        (0.00042, "0.4 ms"),
        (0.0123, "12 ms"),
        (4.12, "4.1 s"),
        (123.4, "123 s"),
    ],
)
def test_durations_are_said_in_the_unit_a_person_would_choose(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said
