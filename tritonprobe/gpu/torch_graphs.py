"""Whether there are CUDA graphs of torch's in this process. Knows torch's class, and loads nothing."""

from __future__ import annotations

import gc
import sys


def are_there_any() -> bool:
    """Looks at every object there is: tens of milliseconds in a large program. To be asked once."""
    graphs = sys.modules.get("torch.cuda.graphs")
    # By their types: asking an object for its class may run its code, and some give a warning then.
    return graphs is not None and any(issubclass(type(each), graphs.CUDAGraph) for each in gc.get_objects())
