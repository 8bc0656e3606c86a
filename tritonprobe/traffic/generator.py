"""Makes traffic up: traces with the lengths and the arrivals of real traffic (`azure`), and prompts of a length.

The same arguments give the same traffic on every machine and every Python. Lengths are drawn independently of each
other and of the times, as the trace that they were fitted to has it.
"""

from __future__ import annotations

import math
import random
from typing import Literal, get_args

from tritonprobe.settings import SettingError
from tritonprobe.traffic.azure import GAP_SECONDS, OUTPUT_TOKENS, PROMPT_TOKENS, Quantiles
from tritonprobe.traffic.trace import MAX_ROWS, Trace, TraceRow

Arrivals = Literal["azure", "poisson"]
"""``azure``: bursts and silences, as measured. ``poisson``: independent arrivals at an even rate, for short runs."""
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)

AZURE_RATE = 1 / GAP_SECONDS.mean()
"""Requests a second of the fitted trace, in the long run."""


def generate(
    seed: int,
    requests: int,
    rate: float | None = None,
    *,
    scale: float = 1.0,
    arrivals: Arrivals = "azure",
) -> Trace:
    """A trace of `requests` requests.

    `rate` is in requests a second, in the long run; by default the fitted trace's, about 2.5. With ``azure`` arrivals a
    short trace may be far from it, for most of the time passes in few silences. `scale` multiplies both lengths, so
    that traffic of the same shape fits a small model's window: at 1/16 the longest prompt has 465 tokens instead of
    7,437. Every length is at least 1. Raises SettingError naming an argument that cannot be used.
    """
    _check("requests", requests, 1 <= requests <= MAX_ROWS, f"a whole number from 1 to {MAX_ROWS}")
    _check("rate", rate, rate is None or 0.001 <= rate <= 1e6, "requests a second, from 0.001 to 1000000")
    _check("scale", scale, 0 < scale <= 1000, "a factor above 0, up to 1000")
    _check("arrivals", arrivals, arrivals in ARRIVALS, " or ".join(ARRIVALS))
    draw = random.Random(seed).random
    mean_gap = 1 / (AZURE_RATE if rate is None else rate)
    rows = []
    t = 0.0
    for _ in range(requests):
        rows.append(TraceRow(round(t, 6), _length(PROMPT_TOKENS, draw(), scale), _length(OUTPUT_TOKENS, draw(), scale)))
        gap = GAP_SECONDS.at(draw()) * AZURE_RATE if arrivals == "azure" else -math.log(1 - draw())
        t += gap * mean_gap
    return Trace(tuple(rows), skipped=0, source=f"generated (seed {seed}, {arrivals} arrivals, lengths x {scale:g})")


def prompt_ids(seed: int, index: int, tokens: int, vocab: int) -> list[int]:
    """The prompt of request `index`: `tokens` ids from 1 up to, not including, `vocab`, evenly drawn.

    Prompts of one seed share hardly a token at the beginning, so a server's prefix cache helps none of them; sent once
    more, all of them are in it. Id 0 is left out: it tends to be a padding token.
    """
    return random.Random(f"{seed}:{index}").choices(range(1, vocab), k=tokens)


def _length(lengths: Quantiles, share: float, scale: float) -> int:
    tokens = math.ceil(
        lengths.at(share)
    )  # a knot's share counts its value in: the tokens above the one below, up to it
    return max(1, round(tokens * scale))


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise SettingError(f"{name}={value!r}: expected {expected}")
