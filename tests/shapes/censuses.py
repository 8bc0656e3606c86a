"""Censuses as Hypothesis makes them: few names, so that entries meet."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tritonprobe.model import TIERS
from tritonprobe.shapes.census import Census, Entry, Environment, Tuned, smallest
from tritonprobe.shapes.census_json import text_of_json

names = st.sampled_from(["m.add", "m.mul"])
words = st.text(max_size=6)
counts = st.integers(0, 1 << 60)
texts = st.lists(words, max_size=4).map(lambda found: smallest(tuple(found), ()))
jsons = st.dictionaries(words, st.integers() | words | st.none(), max_size=2).map(text_of_json)
calls = st.fixed_dictionaries(
    {"arguments": st.dictionaries(words, st.integers() | words | st.none(), max_size=2)},
    optional={"grid": st.lists(st.integers(1, 99), min_size=3, max_size=3)},
).map(text_of_json)
environments = st.builds(
    Environment,
    triton=st.sampled_from(["3.6.0", "3.9.0"]),
    triton_key=st.just("k"),
    target=st.sampled_from(["cuda:90", "cuda:100"]),
    ptxas=st.just("p"),
    device=st.just("d"),
    torch=st.none() | st.just("2.11.0"),
    python=st.just("3.12.3"),
    variables=st.just((("USE_IR_LOC", "1"),)),
)
trials = st.lists(
    st.tuples(words, st.sampled_from(["aa", "bb"]), st.lists(st.integers(1, 99), max_size=3).map(tuple)), max_size=2
).map(lambda found: tuple(sorted(found)))
cold = st.dictionaries(st.sampled_from(TIERS), st.tuples(st.integers(0, 99), counts), max_size=3).map(
    lambda found: tuple((tier, *found[tier]) for tier in sorted(found))
)
entries = st.builds(
    Entry,
    kernel=names,
    hash=st.sampled_from(["aa", "bb"]),
    environment=st.sampled_from(["e1", "e2"]),
    module=words,
    qualname=words,
    source=words,
    inputs=jsons,
    classes=st.lists(st.tuples(words, words), max_size=2).map(tuple),
    keys=texts,
    buckets=texts,
    configs=texts,
    calls=st.lists(calls, max_size=2).map(lambda found: smallest(tuple(found), ())),
    cold=cold,
    launched=st.booleans(),
    first_ns=counts,
    last_ns=counts,
)
tunings = st.builds(
    Tuned,
    kernel=names,
    environment=st.sampled_from(["e1", "e2"]),
    key=st.sampled_from(['["a"]', '["b"]']),
    winner=st.sampled_from(['"c1"', '"c2"']),
    module=words,
    qualname=words,
    source=words,
    call=calls,
    trials=trials,
    measured=st.booleans(),
    sessions=st.integers(0, 99),
    ns=counts,
    first_ns=counts,
    last_ns=counts,
)
censuses = st.builds(
    Census.of,
    st.lists(environments, max_size=2),
    st.lists(entries, max_size=4),
    st.lists(tunings, max_size=3),
    st.dictionaries(st.tuples(names, words), st.integers(1, 1 << 60), max_size=4),
    st.dictionaries(st.sampled_from(["variants", "calls"]), st.integers(1, 99), max_size=2),
)

FULL: dict[str, Any] = json.loads(
    Census.of(
        [Environment("3.6.0", "k", "cuda:90", "p", "d", "2.11.0", "3.12.3", (("USE_IR_LOC", "1"),))],
        [
            Entry(
                kernel="m.add",
                hash="aa",
                environment="e",
                module="m",
                qualname="add",
                source="s",
                inputs='{"signature":[["x","*fp32"]],"constexprs":[],"attrs":[],"options":{"num_warps":4}}',
                classes=(("x", "*fp32 %16"),),
                keys=("key",),
                buckets=("all",),
                configs=("BLOCK: 32",),
                calls=('{"arguments":{"n":3},"grid":[1,1,1]}',),
                cold=(("compile", 2, 7), ("disk", 1, 1)),
            ),
            Entry("m.add", "bb", "e", "m", "add", "s", "{}", (), configs=("BLOCK: 64",), launched=False),
        ],
        [
            Tuned(
                kernel="m.add",
                environment="e",
                key='{"tuple":[3]}',
                winner='"BLOCK: 32"',
                module="m",
                qualname="add",
                source="s",
                call='{"arguments":{"n":3}}',
                trials=(("BLOCK: 32", "aa", (1,)), ("BLOCK: 64", "bb", (1, 1, 1))),
                measured=True,
                sessions=1,
                ns=9,
            )
        ],
        {("m.add", "all"): 3},
        {"calls": 1},
    ).text()
)
"""A document with something in each of its places."""
