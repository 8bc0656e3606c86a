"""What is said in the log of what is counted: cold calls after ready (in tests, an exception), and ops that failed."""

from __future__ import annotations

import logging
import traceback

from tritonprobe.model import ColdCall, FallbackReason
from tritonprobe.plain import plain

log = logging.getLogger("tritonprobe")

LINES = 100
"""Cold calls after ready that are logged, and failures of ops; all are counted."""


class ColdAfterReady(AssertionError):  # noqa: N818  # it reads as what it says
    """A cold call after ready, where the settings say ``on_cold_after_ready="raise"``."""


def account(cold: ColdCall) -> str:
    """Where its variant was found, how long it took and why: ``compile, 2.6 ms, new kernel; raised ValueError``."""
    why = "; ".join(cold.reasons) or "no reason known"
    raised = f"; raised {cold.error}" if cold.error else ""
    return f"{cold.tier}, {cold.wall_ns / 1e6:.1f} ms, {why}{raised}"


class Incidents:
    """The incidents of one process."""

    def __init__(self, reaction: str) -> None:
        """``reaction`` is the setting: ``log`` or ``raise``."""
        self._raises = reaction == "raise"
        self._seen = 0

    def happened(self, cold: ColdCall) -> None:
        """A cold call that some request waited for. Raises ColdAfterReady where the setting wants it."""
        self._seen += 1
        line = f"{cold.kernel} {cold.bucket} was cold after ready: {account(cold)}"
        if self._raises:
            raise ColdAfterReady(plain(line))
        if self._seen <= LINES:
            log.warning("tritonprobe: %s%s", line, "; later ones are only counted" if self._seen == LINES else "")


class OpFailures:
    """Failures of ops that the fallback answered for: nobody else hears of the exception."""

    def __init__(self) -> None:
        self._said: set[tuple[str, FallbackReason]] = set()

    def happened(self, op: str, reason: FallbackReason, error: Exception) -> None:
        """The first of each op and reason is logged with its traceback, up to `LINES`; all are counted."""
        key = (op, reason)
        if key in self._said or len(self._said) >= LINES or not log.isEnabledFor(logging.WARNING):
            return
        self._said.add(key)
        line = (
            f"op {plain(op)} failed ({reason}), and its fallback answered; later ones of this reason are only counted"
        )
        record = log.makeRecord(log.name, logging.WARNING, __file__, 0, "tritonprobe: %s", (line,), None)
        # Its text alone: a record that somebody keeps would keep the exception, its frames and the tensors in them.
        record.exc_text = "\n".join(map(plain, "".join(traceback.format_exception(error)).rstrip().split("\n")))
        log.handle(record)
