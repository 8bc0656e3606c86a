"""A process for `test_kills`: packs, installs or writes a census, without Triton, and says when it begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.prewarming import caches
from tritonprobe.prewarming.bundle import pack
from tritonprobe.prewarming.install import install
from tritonprobe.shapes.census import Census

BEGIN = "tritonprobe-begin"
"""A name that is looked for once, so that what comes before it does not count."""


def main(what: str, source: str, target: str) -> None:
    caches.without_triton()
    Path(BEGIN).exists()
    if what == "pack":
        pack(target, Path(source), census=caches.census_of("add", "mul"))
    elif what == "install":
        install(source, Path(target), census=Path(f"{target}.census"))
    else:
        Census.load(source).save(target)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
