"""Triton's interpreter:

launches are counted there too, and nothing is cold. In a process of its own: Triton decides at import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import torch
import tritonprobe
from tests.adapter.kernels import add_kernel
from tritonprobe.runtime import current

tritonprobe.instrument()
x, out = torch.arange(64.0), torch.empty(64)
for n in (64, 64, 3):
    add_kernel[(1,)](x, x, out, n, BLOCK=64)
try:
    add_kernel[(1,)](x, x)
except Exception as error:
    raised = type(error).__name__
counts = {f.metric.name: [[list(s.labels), s.value] for s in f.samples] for f in current().ledger.collect()
          if f.metric.kind == "counter"}
tritonprobe.uninstrument()
add_kernel[(1,)](x, x, out, 64, BLOCK=64)
json.dump({"counts": counts, "sum": float(out.sum()), "raised": raised, "device": current().device,
           "cold": len(current().cold_calls)}, sys.stdout)
"""


def test_interpreted_launches_are_counted() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": _path()}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    kernel = "tests.adapter.kernels.add_kernel"

    assert found["counts"]["launches_total"] == [
        [[kernel, "n<=64"], 2],
        [[kernel, "n<=4"], 1],
        [[kernel, "unbound"], 1],
    ]
    assert found["counts"]["launch_errors_total"] == [[[kernel, found["raised"]], 1]]
    assert "cache_lookups_total" not in found["counts"], "the interpreter has no variants, so no tiers"
    assert found["cold"] == 0
    assert found["sum"] == 2 * sum(range(64))
    assert found["device"] == "interpreter"


def _path() -> str:
    """The repository first, then what this process was given (another Triton, perhaps)."""
    return os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
