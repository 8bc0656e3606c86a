"""What an engine's adapter may ask of the runtime, and the one line it may say. Knows no engine."""

from __future__ import annotations

import logging
import sys
from typing import Protocol

from tritonprobe.adapter.outside import OutsideCall
from tritonprobe.model import ColdCall
from tritonprobe.plain import PLAIN_LOG
from tritonprobe.requests import Requests

log = logging.getLogger("tritonprobe.engine")
log.addFilter(PLAIN_LOG)


class Host(Protocol):
    """The runtime, as engines see it."""

    @property
    def live(self) -> Requests: ...
    def join(self, engine: str) -> None:
        """This process serves the requests of `engine`, together with others."""

    def set_rank(self, rank: str) -> None:
        """The label of this process's cold calls from here on, unless a setting names one."""

    def await_ready(self, awaits: bool) -> None:
        """Whether this process will say itself when it is ready; else it follows the others of its directory."""

    def prewarm_as_set(self) -> bool:
        """Replays the census that the settings name, once, if kernels run in this process. Never raises.

        Whether there is one to replay here, now or before.
        """

    def engine_ready(self, why: str) -> bool:
        """The engine takes traffic from now on: told to all processes of the directory. Whether that was news."""

    def outside(self, name: str, kind: str) -> OutsideCall:
        """A cold call of another compiler."""

    def tell(self, cold: ColdCall) -> None:
        """A cold call of this thread that is over."""

    def cold_ns(self) -> int:
        """Wall time of this thread's cold calls that are over."""

    def first_step(self, tokens: int, ns: int) -> None:
        """The first step of up to so many tokens took so much longer than the same again, beyond its cold calls."""

    def startup(self) -> str:
        """What the directory's cold calls have cost so far, as one sentence."""

    def fault(self, part: str) -> None: ...


def say(sentence: str) -> None:
    """One line for whoever watches the engine start.

    By logging; a program that lets our logger's INFO go nowhere, as engines do, gets the line on its standard error.
    """
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tritonprobe: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    log.info("%s", sentence)
