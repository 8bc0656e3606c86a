"""One view model of what cold calls cost: built once, shown by the demo, reports and pages alike.

`tell(runtime)` computes everything a reader needs as plain numbers in seconds; what a screen does with them is the
exporters' business. `to_json` and `from_json` carry a story between processes. This room knows no Triton, no clock and
no output format. What was not measured is None or absent; an exposure is an upper bound, and is said as one.
"""

from tritonprobe.story.codec import from_json, to_json
from tritonprobe.story.telling import Source, tell
from tritonprobe.story.view import (
    DearCall,
    OpPaths,
    Pair,
    PhaseTotal,
    Remedy,
    SlowRequest,
    Story,
    TierTotal,
)

__all__ = [
    "DearCall",
    "OpPaths",
    "Pair",
    "PhaseTotal",
    "Remedy",
    "SlowRequest",
    "Source",
    "Story",
    "TierTotal",
    "from_json",
    "tell",
    "to_json",
]
