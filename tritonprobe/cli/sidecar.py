"""The exporter process beside a command: started, and ended with it. Knows ``tritonprobe serve`` as a process only."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tritonprobe
from tritonprobe.cli.group import say
from tritonprobe.settings import Settings

START_SECONDS = 10.0
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sidecar:
    url: str
    _process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Asks it to end, then makes it. Does nothing if it has ended."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._process.kill()
        self._process.wait()


def start(directory: Path, settings: Settings) -> Sidecar | None:
    """An exporter of the directory, once it answers; None if it cannot, and standard error has said why."""
    words = [sys.executable, "-m", "tritonprobe", "serve", str(directory), "--starter", str(os.getpid())]
    where = ["--addr", settings.addr, "--port", str(settings.port)]
    asked = {} if settings.prewarm is None else {"TRITONPROBE_PREWARM": settings.prewarm}  # for what /ready says
    process = subprocess.Popen(
        [*words, *where],
        env={**os.environ, **asked},
        # With -m this is where Python looks first: for us, and not for what the command's folder may hold.
        cwd=Path(tritonprobe.__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the command
    )
    assert process.stdout is not None
    with process.stdout as said:
        in_time, _, _ = select.select([said], [], [], START_SECONDS)
        url = said.readline().decode().strip() if in_time else ""
    if not in_time:
        say(f"tritonprobe: the exporter was not up after {START_SECONDS:.0f} s", err=True)
    sidecar = Sidecar(url, process)
    if not url:
        sidecar.stop()
        return None
    return sidecar
