"""What every JSON document of a measurement says besides its figures: made with what, on what, when, by which command.

Nothing in it names a machine, an address or a folder: documents are meant to be shared.
"""

from __future__ import annotations

import importlib
import platform
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FORMAT = 1


def described() -> dict[str, Any]:
    """Versions of what there is, and the device of this process, which has launched something."""
    from tritonprobe._version import __version__
    from tritonprobe.runtime import current

    versions = {"tritonprobe": __version__}
    for package in ("triton", "torch"):  # what measures no launch needs neither
        with suppress(ModuleNotFoundError):
            versions[package] = str(importlib.import_module(package).__version__)
    return {"versions": {**versions, "python": platform.python_version()}, "device": current().device}


def document(bench: str, command: str, made: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """`made` is what `described` said in a measuring process."""
    return {
        "format": FORMAT,
        "bench": bench,
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": made["versions"],
        "device": made["device"],
        **body,
    }


def command_line(verb: str, options: Mapping[str, Any]) -> str:
    """The command with every option spelt out, defaults too; of a file only its name."""
    words = ["tritonprobe", *verb.split()]
    for option, value in options.items():
        if value is True:
            words.append(option)
        elif value is not False and value is not None:
            words += [option, value.name if isinstance(value, Path) else str(value)]
    return shlex.join(words)


def sees_gpu() -> bool:
    """Whether torch has a CUDA device here."""
    import torch

    return torch.cuda.is_available()


def pick_device(device: str) -> str | None:
    """``auto``, ``cuda`` or ``compile-only:cuda:90`` as the compile-only device to use, or None for the GPU.

    Raises SettingError.
    """
    from tritonprobe.adapter.device import parse_device
    from tritonprobe.settings import SettingError

    if device in ("auto", "cuda"):
        if sees_gpu():
            return None
        if device == "cuda":
            raise SettingError("--device cuda: torch sees no CUDA device; --device compile-only:cuda:90 needs none")
        return "compile-only:cuda:90"
    try:
        parse_device(device)
    except SettingError:
        raise SettingError(
            f"--device {device!r}: expected auto, cuda or compile-only:cuda:90 (cuda:80, cuda:100)"
        ) from None
    return device
