"""Generated traffic: reproducible, and like the trace that it was fitted to, which is compared where it is at hand.

The Azure code trace is looked for in the folder TRITONPROBE_TRACES, else in ``shared/traces`` beside the checkout; it
comes from https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceTrace_code.csv) and has the name below.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.settings import SettingError
from tritonprobe.traffic.azure import GAP_SECONDS, OUTPUT_TOKENS, PROMPT_TOKENS, Quantiles
from tritonprobe.traffic.generator import AZURE_RATE, generate, prompt_ids
from tritonprobe.traffic.trace import Trace, read_trace, write_jsonl

TRACE = "azure_llm_2023_code.csv"
BESIDE = Path(__file__).parents[3] / "shared" / "traces"


@pytest.fixture(scope="module")
def azure() -> Trace:
    path = Path(os.environ.get("TRITONPROBE_TRACES") or BESIDE) / TRACE
    if not path.exists():
        pytest.skip(f"no {path}: set TRITONPROBE_TRACES to the folder that has the Azure trace")
    return read_trace(path)


@pytest.fixture(scope="module")
def generated() -> Trace:
    return generate(seed=7, requests=20_000)


def test_the_same_seed_gives_the_same_trace():
    assert generate(1, 500) == generate(1, 500)
    assert generate(1, 500).rows != generate(2, 500).rows
    assert generate(1, 100).rows == generate(1, 500).rows[:100]


def test_a_trace_survives_its_file(tmp_path):
    trace = generate(3, 200)
    write_jsonl(trace.rows, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl").rows == trace.rows


def test_lengths_are_those_of_the_azure_trace(azure, generated):
    """Kolmogorov-Smirnov distance under 0.02; at these sizes chance alone makes it 0.017 once in twenty times."""
    for field in ("prompt_tokens", "output_tokens"):
        real = [getattr(row, field) for row in azure.rows]
        made = [getattr(row, field) for row in generated.rows]
        assert distance(real, made) < 0.02, field
        assert fmean(made) == pytest.approx(fmean(real), rel=0.05), field
        assert (min(made), max(made)) == pytest.approx((min(real), max(real)), rel=0.2), field


def test_gaps_are_those_of_the_azure_trace(azure, generated):
    """Within 0.04; the mean, which few long silences make, within a quarter."""
    assert distance(gaps(azure), gaps(generated)) < 0.04
    assert generated.seconds / 20_000 == pytest.approx(azure.seconds / len(azure.rows), rel=0.25)


def test_arrivals_come_in_bursts_as_in_the_azure_trace(azure, generated):
    """Counts per 10 s: variance over mean is 1 for Poisson arrivals, 71 in the trace, at least half of that here."""
    assert dispersion(azure) / 2 < dispersion(generated) < dispersion(azure) * 2
    assert dispersion(generate(7, 20_000, arrivals="poisson")) == pytest.approx(1, rel=0.2)


def test_lengths_are_independent_of_each_other(azure, generated):
    for trace in (azure, generated):
        assert abs(rank_correlation(trace)) < 0.05


@pytest.mark.parametrize("arrivals", ["azure", "poisson"])
@pytest.mark.parametrize("rate", [None, 0.5, 40.0])
def test_the_rate_holds_in_the_long_run(rate, arrivals):
    trace = generate(11, 50_000, rate, arrivals=arrivals)
    assert 50_000 / trace.seconds == pytest.approx(AZURE_RATE if rate is None else rate, rel=0.1)


def test_scale_shrinks_lengths_and_leaves_times():
    whole, small = generate(5, 1000), generate(5, 1000, scale=1 / 16)
    assert [row.t for row in small.rows] == [row.t for row in whole.rows]
    for row, full in zip(small.rows, whole.rows, strict=True):
        assert row.prompt_tokens == max(1, round(full.prompt_tokens / 16))
        assert row.output_tokens == max(1, round(full.output_tokens / 16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"requests": 0}, "requests=0: expected a whole number from 1"),
        ({"rate": 0.0}, "rate=0.0: expected requests a second"),
        ({"rate": float("nan")}, "rate=nan: expected requests a second"),
        ({"scale": -1.0}, "scale=-1.0: expected a factor"),
        ({"scale": float("inf")}, "scale=inf: expected a factor"),
        ({"arrivals": "weekly"}, "arrivals='weekly': expected azure or poisson"),
    ],
)
def test_arguments_that_make_no_trace(arguments, message):
    with pytest.raises(SettingError, match=message):
        generate(**({"seed": 0, "requests": 1} | arguments))


@pytest.mark.parametrize("table", [PROMPT_TOKENS, OUTPUT_TOKENS, GAP_SECONDS])
def test_the_tables_are_distributions(table: Quantiles):
    values, shares = zip(*table.knots, strict=True)
    assert all(low < high for low, high in pairwise(values))
    assert all(low < high for low, high in pairwise(shares))
    assert values[0] > 0
    assert shares[-1] == 1


@given(st.floats(0, 1, exclude_max=True))
def test_a_share_lies_between_its_knots(share):
    for table in (PROMPT_TOKENS, OUTPUT_TOKENS, GAP_SECONDS):
        values, shares = zip(*table.knots, strict=True)
        above = bisect_right(shares, share)
        low = values[max(0, above - 1)]
        assert low <= table.at(share) <= values[above]


def test_prompts_are_reproducible_and_differ_from_the_first_tokens():
    assert prompt_ids(1, 0, 300, 1000) == prompt_ids(1, 0, 300, 1000)
    prompts = [prompt_ids(1, index, 300, 1000) for index in range(200)]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 200
    assert {token for prompt in prompts for token in prompt} == set(range(1, 1000))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's: how far apart the two samples' distribution functions are at most."""
    a, b = sorted(a), sorted(b)
    return max(abs(bisect_right(a, x) / len(a) - bisect_right(b, x) / len(b)) for x in {*a, *b})


def gaps(trace: Trace) -> list[float]:
    return [later.t - earlier.t for earlier, later in pairwise(trace.rows)]


def dispersion(trace: Trace, window: float = 10.0) -> float:
    counts = Counter(int(row.t / window) for row in trace.rows)
    every = [counts[index] for index in range(int(trace.seconds / window))]
    return pvariance(every) / fmean(every)


def rank_correlation(trace: Trace) -> float:
    def ranks(values: list[int]) -> list[float]:
        ordered = sorted(values)
        return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]

    a = ranks([row.prompt_tokens for row in trace.rows])
    b = ranks([row.output_tokens for row in trace.rows])
    mean = fmean(a)
    covariance = fmean((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return covariance / (pvariance(a) * pvariance(b)) ** 0.5
