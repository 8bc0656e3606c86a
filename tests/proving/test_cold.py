"""The account of a cold call: what no phase names, its bound, and the binaries. One real, small run of it."""

from __future__ import annotations

import json

import pytest

from tritonprobe.proving import cold
from tritonprobe.proving.cold import KINDS, Cold, Row, Sample, body

MS = 1_000_000
MADE = {"versions": {"triton": "3.6.0"}, "device": "cuda:90 (NVIDIA H200)"}


def sample(wall=100.0, phases=None, lookups=None, cubins=1, listener=50.0):
    return Sample(
        wall_ns=round(wall * MS),
        phases={name: round(ms * MS) for name, ms in (phases or {"cubin": wall}).items()},
        tier="compile",
        lookups={"compile": 1} if lookups is None else lookups,
        cubins=cubins,
        listener_ns=None if listener is None else round(listener * MS),
        listener_calls=0 if listener is None else 1,
    )


def test_what_has_no_name_is_other_and_what_lies_around_the_call():
    found = sample(100, {"ptx": 60, "cubin": 30, "other": 4})
    assert found.named_ns == 90 * MS
    assert found.unnamed_ns == 10 * MS


@pytest.mark.parametrize(
    ("wall", "named", "used"),
    [(100, 95, 1.0), (100, 90, 2.0), (2, 1, 1.0), (2, 1.5, 0.5), (20, 19, 1.0), (1000, 950, 1.0)],
)
def test_the_bound_is_five_percent_or_a_millisecond_if_that_is_more(wall, named, used):
    assert sample(wall, {"cubin": named}).used == pytest.approx(used)


def test_a_row_holds_in_the_median_though_its_worst_does_not():
    good, bad = sample(100, {"cubin": 99}), sample(100, {"cubin": 50})
    assert Row(KINDS[0], (good, good, bad)).within
    assert not Row(KINDS[0], (good, bad, bad)).within


def test_one_binary_too_many_or_too_few_is_wrong():
    assert Row(KINDS[0], (sample(cubins=1),)).counted
    assert not Row(KINDS[0], (sample(cubins=1), sample(cubins=2))).counted
    assert not Row(KINDS[0], (sample(lookups={"disk": 1}, cubins=1),)).counted


def test_the_sample_shown_is_the_one_in_the_middle():
    samples = tuple(sample(wall) for wall in (30, 10, 20))
    assert Row(KINDS[0], samples).middle is samples[2]
    assert Row(KINDS[0], samples[:2]).middle is samples[1]


def test_a_call_that_triton_told_nothing_of_has_no_listener_figure():
    found = body(Cold((Row(KINDS[0], (sample(listener=None),)),), MADE))
    assert found["rows"][0]["samples"][0]["triton_listener"] == {"calls": 0, "total_ms": None}


def test_every_kind_of_the_table_is_met_by_a_part():
    assert {kind.part for kind in KINDS} == {part for part, _ in cold.PARTS}
    assert len({kind.name for kind in KINDS}) == len(KINDS) == 7


def test_compiles_and_disk_hits_in_processes_of_their_own(monkeypatch):
    """All of it but the tuning, for real."""
    monkeypatch.setattr(cold, "PARTS", cold.PARTS[:2])
    monkeypatch.setattr(cold, "KINDS", cold.KINDS[:5])
    said: list[str] = []
    found = cold.measure(1, "compile-only:cuda:90", said.append)

    assert found.made["device"] == "compile-only:cuda:90"
    assert found.compile_only
    by_name = {row.kind.name: row for row in found.rows}
    for name, row in by_name.items():
        expected = "disk" if name.endswith("disk") else "compile"
        for each in row.samples:
            assert (each.tier, each.lookups, each.listener_calls) == (expected, {expected: 1}, 1)
            assert each.cubins == (expected == "compile")
            assert 0 < each.named_ns < each.wall_ns
        assert row.counted
    assert len(by_name["later_disk"].samples) == 2
    assert "process_init" in by_name["first_compile"].middle.phases
    assert "process_init" in by_name["first_disk"].middle.phases
    assert sum("first_compile" in line for line in said) == 1

    document = json.loads(json.dumps(body(found)))
    assert [row["name"] for row in document["rows"]] == list(by_name)
    for row in document["rows"]:
        for each in row["samples"]:
            assert each["unnamed_ms"] == pytest.approx(each["wall_ms"] - each["named_ms"])
            named = sum(ms for phase, ms in each["phases_ms"].items() if phase != "other")
            assert each["named_ms"] == pytest.approx(named)


@pytest.mark.slow
def test_tuning_compiles_each_config_once_and_then_none(monkeypatch):
    monkeypatch.setattr(cold, "PARTS", cold.PARTS[2:])
    monkeypatch.setattr(cold, "KINDS", cold.KINDS[5:])
    nothing, again = cold.measure(1, "compile-only:cuda:90", lambda _: None).rows
    assert nothing.middle.lookups == {"compile": 24}
    assert nothing.middle.cubins == 24
    assert again.middle.cubins == 0
    assert again.middle.listener_ns is None
    assert nothing.middle.phases["autotune"] > 0 < again.middle.phases["autotune"]
