"""What TorchInductor's kernels are called in metrics: without ordinal and hash, and not too many. Pure but for a lock.

``triton_poi_fused_add_mul_3`` of one compiled graph and ``triton_poi_fused_add_mul_0`` of the next do the same
operations: both are ``inductor.triton_poi_fused_add_mul``.
"""

from __future__ import annotations

import re
import threading

from tritonprobe.model import OTHER

PREFIX = "inductor."
MODULES = "torch._inductor.runtime.compile_tasks."
"""Where Inductor loads the modules it writes; what follows is a hash of the source."""
MAX_NAMES = 256
"""Names of one process, apart from those of other kernels; each further one becomes ``inductor.other``."""
MAX_NAME = 120
"""Characters of a name: Inductor lists up to ten operations in one."""

# Counts kernels up; Inductor appends one to the name, and a user's own name may end in another.
_ORDINAL = re.compile(r"(?:_+\d+)+$")
_STRANGE = re.compile(r"[^0-9A-Za-z_]+")


def canonical_name(kernel: str) -> str:
    """The name of an Inductor kernel in metrics: ``triton_red_fused_sum_12`` -> ``inductor.triton_red_fused_sum``."""
    plain = _STRANGE.sub("_", kernel)[:MAX_NAME].rstrip("_")
    plain = _ORDINAL.sub("", plain)
    return PREFIX + ("unnamed" if not plain or plain.isdigit() else plain)


class Names:
    """The names in use; the first `limit` are kept. Safe from any thread."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def admit(self, name: str) -> str:
        with self._lock:
            if name not in self._seen:
                if len(self._seen) >= self._limit:
                    return PREFIX + OTHER
                self._seen.add(name)
            return name
