"""A census stays small whatever is launched: launches of many shapes, and variants without end."""

from __future__ import annotations

import json
import resource
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton

from tests.adapter.conftest import fresh, total_of
from tests.adapter.kernels import add_kernel
from tritonprobe.adapter.census import MAX_BYTES, CensusRecorder
from tritonprobe.runtime import Runtime
from tritonprobe.shapes.census import Census

X = torch.empty(64)
MB = 1 << 20


@pytest.mark.slow
def test_a_million_launches_of_a_hundred_thousand_shapes(instrumented: Runtime) -> None:
    kernel = fresh(add_kernel)
    for _ in range(10):
        for n in range(100_000):
            kernel[(1,)](X, X, X, n, BLOCK=64)
    text = instrumented.census().text()
    census = Census.parse(text)
    assert sum(census.launches.values()) == 1_000_000 == total_of(instrumented, "launches_total")
    assert len(census.entries) == 3  # ==1, %16 and the others
    assert len(text) < 20 * MB
    assert len(text) < 20_000  # and in truth three variants and 18 buckets
    assert dict(census.dropped) == {}


@pytest.mark.slow
def test_variants_without_end_are_bounded_and_what_is_dropped_is_counted(
    instrumented: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 variants, as a program would make that passes a shape as a constexpr: too many to compile here."""
    kernel = fresh(add_kernel)
    kernel[(1,)](X, X, X, 64, BLOCK=64)
    (known,) = instrumented.census().entries.values()
    backend = next(iter(kernel.device_caches.values()))[3]
    inputs = json.loads(known.inputs)
    signature = dict(inputs["signature"])
    recorder = CensusRecorder(instrumented.adapter.registry)
    frame = cast(FrameType, SimpleNamespace(f_locals={"bound_args": {"x": X, "n": 64}}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = backend.parse_options({})
    monkeypatch.setattr("tritonprobe.adapter.census.environment_of", _once(recorder, backend))
    for i in range(100_000):
        found: Any = (f"key {i}", (signature, {(4,): i}, {}, options), backend, f"{i:064x}")
        recorder.variant(kernel, found, frame, "all", "launch", None)
    census = recorder.census()
    text = census.text()
    assert 1_000 < len(census.entries) < 100_000
    assert len(census.entries) + census.dropped["variants"] == 100_000
    assert len(text) < 20 * MB
    assert recorder._bytes <= MAX_BYTES
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 200, f"{grown:.0f} MiB"  # with the text and what parses it
    assert total_of(instrumented, "errors_total") == 0


def test_trials_take_half_of_the_bound_at_the_most_and_winners_stay(instrumented: Runtime) -> None:
    tuner = triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])(fresh(add_kernel))
    recorder = instrumented.adapter.census
    tuner[(1,)](X, X, X, 64)
    recorder._bytes = MAX_BYTES // 2 - 100
    tuner[(1,)](X, X, X, 32)
    census = Census.parse(instrumented.census().text())
    assert sorted(len(tuned.trials) for tuned in census.tunings.values()) == [0, 2]
    assert dict(census.dropped) == {"trials": 1}
    assert recorder._bytes > MAX_BYTES // 2 - 100  # the winner counts


def _once(recorder: CensusRecorder, backend: Any) -> Any:
    """The environment does not change meanwhile, and asking for it 100,000 times would be most of the test."""
    from tritonprobe.adapter.environment import environment_of

    found = environment_of(backend)
    return lambda _: found
