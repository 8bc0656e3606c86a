"""Trials in a process of their own: what a trial can do to a process (a fault on the GPU, a crash) ends this one alone.

Run as ``python -m tritonprobe.cli.tuning_child`` by `choose`, which starts it again without the kernel that ended it.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tritonprobe.cli.group import Complaint
from tritonprobe.prewarming.run import Tuning
from tritonprobe.prewarming.skipped import Skipped
from tritonprobe.proving.processes import Answer, MeasuringError, Request, Say, answer, ask
from tritonprobe.shapes.census import Census, with_winners


def choose(census: Census, modules: Sequence[str], threads: int | None) -> tuple[Census, list[Skipped]]:
    """Lets the tuners of a census choose on this machine's GPU. The census with their winners, and what was skipped.

    Raises Complaint if the process ends before it tries anything.
    """
    ended: dict[str, str] = {}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    with tempfile.TemporaryDirectory(prefix="tritonprobe-tune-") as folder:
        file = Path(folder) / "census.json"
        census.save(file)
        while True:
            tried: list[str] = []
            request = {"census": str(file), "modules": list(modules), "threads": threads, "without": sorted(ended)}
            try:
                told = ask("tritonprobe.cli.tuning_child", request, env, tried.append)
            except MeasuringError as error:
                if not tried or tried[-1] in ended:
                    raise Complaint(f"tuning: {error}") from None
                ended[tried[-1]] = f"a trial ended its process ({error})"
                continue
            skipped = [Skipped(**row) for row in told["skipped"]]
            return Census.load(file), [*skipped, *(Skipped(kernel, why, winner=True) for kernel, why in ended.items())]


def main(request: Request, say: Say) -> Answer:
    from tritonprobe.runtime import current

    for name in request["modules"]:
        importlib.import_module(name)
    file = Path(request["census"])
    census = Census.load(file)

    def save() -> None:
        with_winners(census, current().census()).save(file)

    def about_to(kernel: str) -> None:
        save()  # what was chosen before is kept, whatever this one does
        say(kernel)

    tuning = Tuning(about_to, frozenset(request["without"]))
    result = current().prewarm(census, cover=1.0, threads=request["threads"], modules=request["modules"], tune=tuning)
    save()
    return {"skipped": [asdict(skipped) for skipped in result.skipped]}


if __name__ == "__main__":
    answer(main)
