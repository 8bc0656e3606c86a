"""Whether there are CUDA graphs of torch's in this process. Knows torch's class, and loads nothing."""

from __future__ import annotations

import sys

from tritonprobe.living import instances


def are_there_any() -> bool:
    """Has the collector look at every object: tens of milliseconds in a large program. To be asked once."""
    graphs = sys.modules.get("torch.cuda.graphs")
    return graphs is not None and bool(instances(graphs.CUDAGraph))
