"""What `ready()` does with the census that the settings name: replays it for a while, and says what came of it.

A server that is not prewarmed is a slow one and no broken one: whatever fails here, it becomes ready and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tritonprobe.prewarming.run import Prewarmed
from tritonprobe.shapes.census import Census, CensusError

log = logging.getLogger("tritonprobe")


@dataclass(frozen=True, slots=True)
class Outcome:
    result: Prewarmed
    because: str
    """Why the process is ready now, for ``/ready``."""


def has_device() -> bool:
    """Whether kernels run in this process. A front end would only take a piece of the GPU for itself."""
    from tritonprobe.adapter.device import is_in_use

    return is_in_use()


def replay(path: str, timeout: float, prewarm: Callable[[Census], Prewarmed], fault: Callable[[str], None]) -> Outcome:
    """Replays the census at `path` with `prewarm`, which keeps to the `timeout` in seconds. Never raises."""
    try:
        done = prewarm(Census.load(path))
    except CensusError as error:
        return _failed(f"TRITONPROBE_PREWARM: {error}")
    except Exception as error:
        fault("prewarm")
        return _failed(f"TRITONPROBE_PREWARM={path}: {type(error).__name__}: {error}")
    reached = "none for this device" if done.coverage is None else f"{done.coverage:.1%}"
    if done.stopped == "deadline":
        because = f"the ready_timeout of {timeout:.0f} s passed, at a coverage of {reached}"
        log.warning("tritonprobe: ready though prewarming is not done: %s", because)
    else:
        because = f"prewarmed from {path}, coverage {reached}"
    log.info(
        "tritonprobe: prewarmed %d variants in %.1f s, %d were there, %d skipped, coverage %s",
        done.replayed,
        done.seconds,
        done.there_before,
        len(done.skipped),
        reached,
    )
    return Outcome(done, because)


def _failed(because: str) -> Outcome:
    log.warning("tritonprobe: %s; ready without it", because)
    return Outcome(Prewarmed(), f"not prewarmed: {because}")
