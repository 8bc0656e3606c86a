"""The census: a format that comes back as it went, a merge whose order plays no part, and files that are refused."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.damage import damaged
from tests.shapes.censuses import FULL, censuses
from tritonprobe.prewarming.plan import make_plan
from tritonprobe.shapes.census import MAX_COUNT, Census, CensusError, Entry, diff, merge


def entry(kernel: str = "m.add", hash: str = "aa", **more: Any) -> Entry:  # noqa: A002
    fields: dict[str, Any] = {"environment": "e", "module": "m", "qualname": "add", "source": "s", "inputs": "{}"}
    return Entry(kernel, hash, **{**fields, "classes": (("x", "*fp32 %16"),), **more})


TUNING = FULL["tunings"][0]


@given(censuses)
def test_what_is_written_comes_back(census: Census) -> None:
    assert Census.parse(census.text()) == census


@given(censuses, censuses)
def test_merging_is_commutative(one: Census, other: Census) -> None:
    assert merge(one, other).text() == merge(other, one).text()


@given(censuses, censuses, censuses)
def test_merging_is_associative(one: Census, two: Census, three: Census) -> None:
    assert merge(merge(one, two), three).text() == merge(one, merge(two, three)).text() == merge(one, two, three).text()


@given(censuses)
def test_nothing_added_is_nothing_changed(census: Census) -> None:
    assert merge(census, Census()) == census
    assert diff(census, census).same_variants


def test_counts_add_up_and_times_span() -> None:
    one = Census.of(entries=[entry(cold=(("compile", 1, 10),), first_ns=5, last_ns=6)], launches={("m.add", "all"): 2})
    two = Census.of(entries=[entry(cold=(("compile", 2, 7),), first_ns=3, last_ns=4)], launches={("m.add", "all"): 3})
    both = merge(one, two)
    (met,) = both.entries.values()
    assert (met.cold, met.first_ns, met.last_ns) == ((("compile", 3, 17),), 3, 6)
    assert both.launches == {("m.add", "all"): 5}


def test_of_one_winner_the_session_that_made_trials_is_kept() -> None:
    tuned = next(iter(Census.parse(json.dumps({**json.loads(Census().text()), "tunings": [TUNING]})).tunings.values()))
    from_disk = replace(tuned, call='{"arguments":{"n":1}}', trials=())  # its call would be first
    for one, other in ((tuned, from_disk), (from_disk, tuned)):
        both = one.merged(other)
        assert (both.call, both.trials, both.sessions) == (tuned.call, tuned.trials, 2 * tuned.sessions)
        assert both.trials


def test_a_file_of_before_trials_were_written_is_read() -> None:
    old = {name: value for name, value in TUNING.items() if name != "trials"}
    census = Census.parse(json.dumps({**FULL, "tunings": [old]}))
    assert [tuned.trials for tuned in census.tunings.values()] == [()]


def test_launches_of_a_bucket_are_shared_by_the_variants_in_it() -> None:
    census = Census.of(
        entries=[entry(hash="aa", buckets=("n<=64",)), entry(hash="bb", buckets=("n<=64", "n<=128"))],
        launches={("m.add", "n<=64"): 10, ("m.add", "n<=128"): 1},
    )
    assert sorted(census.weights(census.entries.values()).values()) == [5.0, 6.0]


def test_launches_that_met_only_variants_known_before_are_shared_by_all_of_their_kernel() -> None:
    """The first variant was met at 256 and served 512 as well: nobody was new there, and the launch is not lost."""
    census = Census.of(
        entries=[entry(hash="aa", buckets=("n<=256",)), entry(hash="bb", buckets=("n<=128",))],
        launches={("m.add", "n<=256"): 2, ("m.add", "n<=512"): 1, ("m.add", "n<=128"): 3},
    )
    assert sorted(census.weights(census.entries.values()).values()) == [2.5, 3.5]


@given(censuses)
def test_no_launch_of_a_kernel_that_has_an_entry_is_lost(census: Census) -> None:
    entries = census.entries.values()
    weights = census.weights(entries)
    assert weights.keys() == census.entries.keys()
    for kernel in {e.kernel for e in entries}:
        stands_for = sum(weights[e.identity] for e in entries if e.kernel == kernel)
        assert stands_for == pytest.approx(sum(n for (name, _), n in census.launches.items() if name == kernel))


def test_a_diff_names_what_came_and_went() -> None:
    before = Census.of(entries=[entry(hash="aa"), entry(hash="bb")], launches={("m.add", "all"): 2})
    after = Census.of(entries=[entry(hash="bb"), entry(hash="cc")], launches={("m.add", "all"): 5})
    found = diff(before, after)
    assert ([e.hash for e in found.new], [e.hash for e in found.gone]) == (["cc"], ["aa"])
    assert found.launches == {("m.add", "all"): (2, 5)}


@given(censuses, st.data())
def test_any_damage_is_refused_or_is_none(census: Census, data: st.DataObject) -> None:
    text = census.text()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "x", "{", "]", "1", '"', "null"])) + text[at + 1 :]
    with contextlib.suppress(CensusError):
        Census.parse(damaged)


@given(st.data())
def test_any_value_in_any_place_is_taken_or_refused(data: st.DataObject) -> None:
    """What is taken can be merged, compared, planned, and written so that it is read again."""
    text, said = json.dumps(data.draw(damaged(FULL))), ""
    try:
        found = Census.parse(text)
    except CensusError as error:
        said, found = str(error), Census()
    assert len(said) < 500
    whole = Census.parse(json.dumps(FULL))
    both = merge(found, whole, found)
    assert Census.parse(both.text()) == both
    diff(found, whole)
    found.weights(found.entries.values())
    plan = make_plan(found, cover=0.9, budget_ns=10**9)
    assert len(plan.tasks) + len(plan.left_out) + len(plan.unneeded) == len(found.entries)


def test_sums_stay_what_a_reader_takes() -> None:
    most = Census.of(
        entries=[entry(cold=(("compile", MAX_COUNT, MAX_COUNT),))], launches={("m.add", "all"): MAX_COUNT - 1}
    )
    both = merge(most, most)
    assert Census.parse(both.text()) == both
    assert both.launches == {("m.add", "all"): MAX_COUNT}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "census version 2: this tritonprobe reads version 1"),
        ({"format": "trace"}, 'no census: "format" is not "tritonprobe census"'),
        ({"entries": {}}, "entries: expected a list"),
        ({"entries": [5]}, r"entries\[0\]: expected an object"),
        ({"launches": {"m.add": {"all": -1}}}, "launches.m.add.all: expected a whole number, 0 or more"),
        ({"launches": {"m.add": {"all": 1.5}}}, "launches.m.add.all: expected a whole number"),
        ({"launches": {"m.add": {"all": 10**400}}}, "launches.m.add.all: expected a whole number"),
        ({"launches": {"m" * 5000: {"all": 1}}}, "launches: a name of 5,000 characters, and 4,096 are allowed"),
        ({"version": True}, "census version True: this tritonprobe reads version 1"),
        ({"dropped": {"calls": float("nan")}}, "no census: NaN is no number that JSON knows"),
        ({"tunings": [{**TUNING, "winner": [1]}]}, r"tunings\[0\].winner: expected text"),
        ({"tunings": [{**TUNING, "call": {"arguments": 1}}]}, r"tunings\[0\].call: expected an object with arguments"),
        ({"tunings": [{**TUNING, "trials": {}}]}, r"tunings\[0\].trials: expected a list of objects"),
        (
            {"tunings": [{**TUNING, "trials": [{"config": "c", "hash": "aa", "grid": 1}]}]},
            r"tunings\[0\].trials: expected a grid of whole numbers",
        ),
        ({"tunings": [{**TUNING, "trials": [{"config": 1}]}]}, r"tunings\[0\].config: expected text"),
        ({"tunings": [{**TUNING, "call": {"grid": "x"}}]}, r"tunings\[0\].call: expected a grid of whole numbers"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(change: Any, says: str, tmp_path: Path) -> None:
    file = tmp_path / "census.json"
    file.write_text(json.dumps({**json.loads(Census().text()), **change}))
    with pytest.raises(CensusError, match=says) as caught:
        Census.load(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CensusError, match="No such file"):
        Census.load(tmp_path / "none.json")
    (tmp_path / "noise.json").write_bytes(b"\xff\x00")
    with pytest.raises(CensusError, match="no census"):
        Census.load(tmp_path / "noise.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(CensusError, match="no census"):
        Census.load(tmp_path / "deep.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CensusError, match="no regular file"):
        Census.load(pipe)
