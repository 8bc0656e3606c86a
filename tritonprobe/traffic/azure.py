"""What the Azure code-completion trace of 2023 looks like, as quantiles: facts about it, none of its rows.

Taken from 8,819 requests over 57 minutes on 2023-11-16, ``AzureLLMInferenceTrace_code.csv`` of Microsoft's Azure Public
Dataset (https://github.com/Azure/AzurePublicDataset, Creative Commons Attribution 4.0), described in Patel et al.,
"Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024.

* Prompts are long, answers short: medians 1,469 and 13 tokens. 4% of the prompts fill the service's window.
* Prompt and answer lengths do not move together (Spearman -0.02), nor do neighbouring requests' (0.01).
* Arrivals are far from Poisson. A tenth of the gaps are under 0.2 ms, many are near 100 ms, and 1.6% of them, each more
  than a second, make up 77% of the time: bursts and silences. The gaps' coefficient of variation is 13.
* Neighbouring gaps are weakly alike (correlation of their logarithms 0.11). `GAP_SECONDS` leaves that out: independent
  gaps give counts per 10 s a variance of some 50 times their mean, where the trace has 71 and Poisson arrivals have 1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of positive values: ``knots`` are (value, share of the observations at most that value), rising.

    Between two knots the logarithm of the value is uniform. The last share is 1.
    """

    knots: tuple[tuple[float, float], ...]

    def at(self, share: float) -> float:
        """The value that `share` (from 0 up to, not including, 1) of the observations stay under."""
        index = bisect_right(self.knots, share, key=lambda knot: knot[1])
        high, above = self.knots[index]
        if index == 0:
            return high
        low, below = self.knots[index - 1]
        return float(min(high, low * (high / low) ** ((share - below) / (above - below))))

    def mean(self) -> float:
        first, share = self.knots[0]
        return first * share + sum(
            (above - below) * (high - low) / math.log(high / low)
            for (low, below), (high, above) in pairwise(self.knots)
        )


PROMPT_TOKENS = Quantiles((
    (3, 0.0002), (17, 0.0102), (35, 0.0202), (50, 0.0303), (75, 0.0507), (102, 0.0751), (147, 0.1004), (232, 0.1504),
    (385, 0.2000), (578, 0.2504), (770, 0.3005), (938, 0.3500), (1075, 0.4004), (1469, 0.5007), (1909, 0.6001),
    (2433, 0.7002), (2745, 0.7502), (3193, 0.8003), (3923, 0.8501), (5194, 0.9001), (6097, 0.9253), (7315, 0.9502),
    (7431, 0.9604), (7434, 0.9635), (7435, 0.9752), (7436, 0.9980), (7437, 1.0),
))  # fmt: skip

OUTPUT_TOKENS = Quantiles((
    (6, 0.0827), (7, 0.1536), (8, 0.2115), (9, 0.3034), (10, 0.3649), (11, 0.4154), (12, 0.4692), (13, 0.5201),
    (14, 0.5603), (15, 0.5954), (16, 0.6252), (18, 0.6699), (20, 0.7092), (25, 0.7698), (30, 0.8093), (40, 0.8563),
    (60, 0.9119), (90, 0.9502), (150, 0.9764), (250, 0.9899), (400, 0.9959), (800, 0.9988), (1899, 1.0),
))  # fmt: skip

GAP_SECONDS = Quantiles((
    (0.000006, 0.0), (0.000042, 0.02), (0.000088, 0.05), (0.000209, 0.10), (0.000885, 0.15), (0.00118, 0.20),
    (0.00208, 0.25), (0.00329, 0.30), (0.00535, 0.35), (0.0151, 0.40), (0.0382, 0.45), (0.0638, 0.50), (0.0896, 0.55),
    (0.0950, 0.60), (0.0979, 0.65), (0.1000, 0.70), (0.1040, 0.75), (0.1600, 0.80), (0.1990, 0.85), (0.2730, 0.90),
    (0.4010, 0.95), (0.7990, 0.98), (0.9980, 0.984), (2.21, 0.990), (3.70, 0.993), (10.1, 0.995), (28.1, 0.997),
    (43.3, 0.998), (82.8, 0.999), (139.0, 0.9995), (217.0, 1.0),
))  # fmt: skip
