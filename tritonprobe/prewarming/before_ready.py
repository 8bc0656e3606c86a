"""What `ready()` does with the census that the settings name: replays it for a while, and says what came of it.

A server that is not prewarmed is a slow one and no broken one: whatever fails here, it becomes ready and says why.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from tritonprobe.model import PrewarmOutcome
from tritonprobe.prewarming.run import Prewarmed
from tritonprobe.prewarming.skipped import Skipped
from tritonprobe.shapes.census import Census, CensusError
from tritonprobe.wording import counted

log = logging.getLogger("tritonprobe")

ENOUGH = 0.9995
"""A coverage from which on it is told as 100.0%."""
MAX_REASONS = 3
MAX_SHOWN = 300
"""Characters of a reason with its kernel's name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    result: Prewarmed
    because: str
    """Why the process is ready now, for ``/ready``."""
    outcome: PrewarmOutcome


def has_device() -> bool:
    """Whether kernels run in this process. A front end would only take a piece of the GPU for itself."""
    from tritonprobe.adapter.device import is_in_use

    return is_in_use()


def no_device(path: str) -> str:
    """Why the census at `path` was not replayed where nothing could be; told once, for it may be a mistake."""
    because = f"TRITONPROBE_PREWARM={path}: no device is in use in this process yet"
    log.warning(
        "tritonprobe: %s; ready without it: call ready() after instrument() and the first use of the GPU", because
    )
    return f"not prewarmed: {because}"


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
        because = f"the ready_timeout of {timeout:g} s passed, at a coverage of {reached}"
        log.warning("tritonprobe: ready though prewarming is not done: %s", because)
    else:
        because = f"prewarmed from {path}, coverage {reached}"
    low = done.stopped is None and (done.coverage is None or done.coverage < ENOUGH)
    log.log(
        logging.WARNING if done.skipped or low else logging.INFO,  # a warning is heard where nobody set up logging
        "tritonprobe: prewarmed %s, coverage %s%s",
        done.summary(),
        reached,
        _reasons(done.skipped),
    )
    return Outcome(done, because, "done" if done.stopped is None else "stopped")


def _reasons(skipped: list[Skipped]) -> str:
    """The first ones, each once with how often it came."""
    times = Counter(f"{one.kernel}: {one.because}" for one in skipped)
    shown = [
        f"{reason[:MAX_SHOWN]}{f' ({count} times)' if count > 1 else ''}"
        for reason, count in islice(times.items(), MAX_REASONS)
    ]
    more = len(times) - len(shown)
    return "".join(f"; {one}" for one in [*shown, *([f"and {counted(more, 'more reason')}"] if more else [])])


def _failed(because: str) -> Outcome:
    log.warning("tritonprobe: %s; ready without it", because)
    return Outcome(Prewarmed(), f"not prewarmed: {because}", "failed")
