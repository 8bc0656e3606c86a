"""Serving engines: what they know that kernels do not: their ranks, their steps, their requests, and being ready.

One module an engine; each touches that engine's internals and nothing else. An engine is attached where its modules
are imported, in whichever of its processes; a patch looks at what it patches first, and one that does not know what it
finds stays away, by itself, and says so: kernels and cold calls are watched all the same.
"""

from __future__ import annotations

import logging

from tritonprobe.adapter.engines import compilers, sglang, vllm
from tritonprobe.adapter.engines.attaching import Attachment
from tritonprobe.adapter.engines.host import Host

log = logging.getLogger("tritonprobe")


class Engines:
    """The engines that this process may turn out to be part of."""

    def __init__(self, host: Host) -> None:
        self._attachments: tuple[Attachment, ...] = (
            vllm.Vllm(host).attachment,
            sglang.Sglang(host).attachment,
            compilers.attachment(host),
        )

    def install(self) -> None:
        """Patches what is imported, and what will be. Twice changes nothing."""
        for attachment in self._attachments:
            attachment.install()

    def remove(self) -> list[str]:
        """Takes everything back; returns the names that somebody else had wrapped."""
        return [name for attachment in reversed(self._attachments) for name in attachment.remove()]
