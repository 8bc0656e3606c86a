"""One process that compiles a function and says what was cold in it: run as ``python -m tests.gpu.inductor_process``.

Its caches are where the environment says. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

import torch

import tritonprobe
from tritonprobe.ledger import Sample
from tritonprobe.runtime import current
from tritonprobe.testing import capture_cold_calls


def main() -> None:
    torch._inductor.config.compile_threads = int(sys.argv[1])
    tritonprobe.instrument()
    x = torch.randn(512, 1024, device="cuda")
    function = torch.compile(lambda x: torch.softmax(torch.relu(x) * 2 + 1, dim=-1))
    with capture_cold_calls() as calls:
        result = function(x)
    expected = torch.softmax(torch.relu(x) * 2 + 1, dim=-1)
    families = {
        family.metric.name: [[*s.labels, s.value] for s in family.samples if isinstance(s, Sample)]
        for family in current().ledger.collect()
    }
    told = {
        "calls": [
            {"kernel": c.kernel, "kind": c.kind, "tier": c.tier, "reasons": c.reasons, "phases": dict(c.phases)}
            for c in calls
        ],
        "launches": families.get("launches_total", []),
        "lookups": families.get("cache_lookups_total", []),
        "errors": families.get("errors_total", []),
        "graph_cache_hits": {
            "fx": torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"],
            "autograd": torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"],
        },
        "equal": bool(torch.allclose(result, expected, atol=1e-5)),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
