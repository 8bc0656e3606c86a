"""The entry point that engines load plugins from: ``vllm.general_plugins`` and ``sglang.srt.plugins``.

It does what the environment of ``tritonprobe run`` does, in each process that the engine loads its plugins in; both
together are one. That tritonprobe is installed is no wish to be watched: without a ledger directory, where the numbers
could be read, it does nothing.
"""

from __future__ import annotations

import logging
import os

from tritonprobe.ledger.directory import VARIABLE
from tritonprobe.probe import instrument

log = logging.getLogger("tritonprobe")


def attach() -> None:
    """Watches this process of an engine, if TRITONPROBE_DIR is set. Never raises into the engine."""
    if not os.environ.get(VARIABLE):
        log.info("tritonprobe: not watching: set %s to a directory, and serve it: tritonprobe serve DIR", VARIABLE)
        return
    try:
        instrument()
    except Exception as error:
        log.warning("tritonprobe: process %d is not probed (%s: %s)", os.getpid(), type(error).__name__, error)
