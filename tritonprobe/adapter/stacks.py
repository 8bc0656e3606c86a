"""The stacks of other threads, so that looking at them keeps nothing of the program alive. Knows no Triton.

A frame that is held when its function returns keeps the function's variables, and so do the frames it was called from.
If our own frame were among those we hold, it would hold itself: all that these threads had in their variables, tensors
and CUDA graphs, would stay until a full garbage collection, and for ever in a program that has none.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType


def others() -> dict[int, FrameType]:
    """By thread, the innermost frame of each but the caller's. To be let go of soon."""
    found = sys._current_frames()
    found.pop(threading.get_ident(), None)
    return found
