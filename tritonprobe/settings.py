"""The settings, one typed object: code over ``TRITONPROBE_*`` over defaults. No file.

=============================  ==========================================================================
``TRITONPROBE_DEVICE``         ``compile-only:cuda:90``: real compiler and caches, no GPU (see `testing`)
``TRITONPROBE_DIR``            keep the numbers in a file in this directory, for an exporter process to read
``TRITONPROBE_SERIES_BUDGET``  how many series one process may export before the rest go to ``other``
``TRITONPROBE_ADDR``           where `serve()` listens (default 127.0.0.1)
``TRITONPROBE_PORT``           its port (default 9464)
``TRITONPROBE_RANK``           the rank label of cold families (default ``RANK``, else 0)
``TRITONPROBE_ENGINE``         processes of this name, and of one ``TRITONPROBE_DIR``, serve the same requests
``TRITONPROBE_TTFT_SLOS``      objectives for the time to first token, seconds: ``0.5,2`` (default none)
``TRITONPROBE_DISABLED``       ``1``: `instrument()` and `@probe` do nothing
``TRITONPROBE_HOST_WINDOWS``   mean seconds between the windows of `launch_host_seconds` (default 10; 0: none)
``TRITONPROBE_PREWARM``        a census that `ready()` replays before the process takes traffic
``TRITONPROBE_READY_TIMEOUT``  seconds after which it takes traffic in any case (default 600)
``TRITONPROBE_ON_COLD_AFTER_READY``  ``log`` (default), or ``raise`` in tests
=============================  ==========================================================================
"""

from __future__ import annotations

import logging
import os
import re
import reprlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace

log = logging.getLogger("tritonprobe")

PREFIX = "TRITONPROBE_"
MAX_TOLD = 8
"""How many variables that look like a setting's name misspelt are told of."""
_told: set[str] = set()


class SettingError(ValueError):
    """A setting that cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Settings:
    device: str | None = None
    dir: str | None = None  # a directory for the ledger's file, shared with other processes; None: in this one's memory
    series_budget: int = 10_000
    buckets_per_kernel: int = 256
    addr: str = "127.0.0.1"
    port: int = 9464
    rank: str = "0"
    engine: str | None = None  # processes that share it, and the directory, charge their stalls to the same requests
    ttft_slos: tuple[float, ...] = ()  # seconds; each counts its misses
    disabled: bool = False
    history: int = 10_000  # cold calls, and requests, kept for reports
    prewarm: str | None = None  # a census that is replayed before the process is ready; None: nothing is
    ready_timeout: float = 600.0  # seconds of prewarming after which the process is ready in any case
    on_cold_after_ready: str = "log"  # what an incident does: log, or (in tests) raise
    host_windows: float = 10.0  # mean seconds between windows of 20 ms in which host launch time is measured; 0: never
    gpu_windows: str = "off"  # measure GPU times in short windows; `graphs`: also where there are CUDA graphs

    def __post_init__(self) -> None:
        for name in _PATHS:
            if isinstance(path := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(path))
        if isinstance(self.ttft_slos, list):
            object.__setattr__(self, "ttft_slos", tuple(self.ttft_slos))
        for f in fields(self):
            _check(f.name, f.name, getattr(self, f.name))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads ``TRITONPROBE_*``. Raises SettingError naming the variable that cannot be used.

        One that no setting has, but for a few letters, is a line in the log, once a process.
        """
        env = os.environ if environ is None else environ
        _tell_of_misspelt(env, [f.name.upper() for f in fields(cls)])
        found: dict[str, object] = {}
        for f in fields(cls):
            name = f"{PREFIX}{f.name.upper()}"
            text = env.get(name, "").strip()
            if not text and f.name == "rank":
                text = env.get("RANK", "").strip()
            if text:
                found[f.name] = _parse(name, text, f.name)
        return cls(**found)  # type: ignore[arg-type]  # _parse gives each field its type

    def with_(self, **changes: object) -> Settings:
        """A copy with `changes`. Raises SettingError on an unknown name, or a value that cannot be used."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise SettingError(f"unknown setting {name!r}; the settings are {', '.join(sorted(known))}")
        return replace(self, **changes)  # type: ignore[arg-type]  # __post_init__ checks


def _tell_of_misspelt(env: Mapping[str, str], known: Collection[str]) -> None:
    """Others' names are left alone: Kubernetes puts a service's into it, such as TRITONPROBE_SERVICE_HOST."""
    given = {name.removeprefix(PREFIX) for name in env if name.startswith(PREFIX)}
    unknown = given.difference(known, _told)
    if not unknown or len(_told) >= MAX_TOLD:
        return
    from difflib import get_close_matches  # which hardly any process needs

    for name in sorted(unknown):
        for near in get_close_matches(name, known, n=1):
            _told.add(name)
            said = f"{PREFIX}{name} is no setting, and has no effect: is {PREFIX}{near} meant?"
            log.warning("tritonprobe: %s", said)
        if len(_told) >= MAX_TOLD:
            return


_WHOLE = {
    "series_budget": (100, 10_000_000),
    "buckets_per_kernel": (1, 1_000_000),
    "port": (0, 65_535),
    "history": (1, 10_000_000),
}
MAX_SLOS = 8
"""Objectives: each is two series."""
_SECONDS = {"host_windows": "seconds, from 0 (none) to 86400", "ready_timeout": "seconds, from 0 to 86400"}
_PATHS = {"dir": "a directory's path, or none", "prewarm": "a file's path, or none"}
_CHOICES: dict[str, tuple[object, ...]] = {
    "disabled": (True, False),
    "on_cold_after_ready": ("log", "raise"),
    "gpu_windows": ("off", "on", "graphs"),
}
_EXAMPLES = {"addr": "127.0.0.1", "rank": "0", "engine": "llm-0"}
_DEVICE = re.compile(r"compile-only:cuda:[0-9]+")  # which numbers there are, the adapter knows


def _check(label: str, field: str, value: object) -> None:
    """Raises SettingError, which calls the setting `label`, if `value` cannot be that field's."""
    wanted = _wanted(field, value)
    if wanted is not None:
        raise SettingError(f"{label}={reprlib.repr(value)}: expected {wanted}")


def _wanted(field: str, value: object) -> str | None:
    """What would do instead of `value`; None if it does."""
    if field in _WHOLE:
        low, high = _WHOLE[field]
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        wanted = f"a whole number from {low} to {high}"
    elif field in _SECONDS:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 86_400
        wanted = _SECONDS[field]
    elif field == "ttft_slos":
        good, wanted = _are_slos(value), f"up to {MAX_SLOS} different numbers of seconds above 0, such as 0.5,2"
    elif field in _CHOICES:
        good = isinstance(value, (bool, str)) and value in _CHOICES[field]
        wanted = " or ".join(map(str, _CHOICES[field]))
    elif field == "device":
        good = value is None or (isinstance(value, str) and _DEVICE.fullmatch(value) is not None)
        wanted = "compile-only:cuda:90 (cuda:80, cuda:100), or none"
    elif field in _PATHS:
        good = value is None or (isinstance(value, str) and "\0" not in value)
        wanted = _PATHS[field]
    else:
        good = (isinstance(value, str) and value != "") or (field == "engine" and value is None)
        wanted = f"text, such as {_EXAMPLES[field]!r}"
    return None if good else wanted


def _are_slos(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) > MAX_SLOS or len(set(value)) < len(value):
        return False
    return all(isinstance(slo, (int, float)) and not isinstance(slo, bool) and 0 < slo <= 86_400 for slo in value)


def _parse(variable: str, text: str, field: str) -> object:
    """The value that the text of an environment variable stands for. Raises SettingError."""
    value: object = text
    if field == "gpu_windows":
        value = {"0": "off", "1": "on"}.get(text, text)
    elif field == "disabled":
        if text.lower() not in ("0", "1", "true", "false", "yes", "no"):
            raise SettingError(f"{variable}={text!r}: expected 1 or 0")
        value = text.lower() in ("1", "true", "yes")
    elif field == "ttft_slos":
        with suppress(ValueError):
            value = tuple(float(slo) for slo in text.split(","))
    elif field in _WHOLE or field in _SECONDS:
        with suppress(ValueError):  # text is no number, and `_check` says so
            value = float(text) if field in _SECONDS else int(text)
    _check(variable, field, value)
    return value
