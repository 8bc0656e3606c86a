"""The settings, one typed object: code over ``TRITONPROBE_*`` over defaults. No file.

=============================  ==========================================================================
``TRITONPROBE_DEVICE``         ``compile-only:cuda:90``: real compiler and caches, no GPU (see `testing`)
``TRITONPROBE_DIR``            keep the numbers in a file in this directory, for an exporter process to read
``TRITONPROBE_SERIES_BUDGET``  how many series one process may export before the rest go to ``other``
``TRITONPROBE_ADDR``           where `serve()` listens (default 127.0.0.1)
``TRITONPROBE_PORT``           its port (default 9464)
``TRITONPROBE_RANK``           the rank label of cold families (default ``RANK``, else 0)
``TRITONPROBE_DISABLED``       ``1``: `instrument()` and `@probe` do nothing
``TRITONPROBE_HOST_WINDOWS``   mean seconds between the windows of `launch_host_seconds` (default 10; 0: none)
=============================  ==========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


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
    disabled: bool = False
    history: int = 10_000  # cold calls, and requests, kept for reports
    host_windows: float = 10.0  # mean seconds between windows of 20 ms in which host launch time is measured; 0: never

    def __post_init__(self) -> None:
        for name, low, high in (
            ("series_budget", 100, 10_000_000),
            ("buckets_per_kernel", 1, 1_000_000),
            ("port", 0, 65_535),
            ("history", 1, 10_000_000),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise SettingError(f"{name}={value!r}: expected a whole number from {low} to {high}")
        if not 0 <= self.host_windows <= 86_400:
            raise SettingError(f"host_windows={self.host_windows!r}: expected seconds, from 0 (none) to 86400")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads ``TRITONPROBE_*``. Raises SettingError naming the variable that cannot be used."""
        env = os.environ if environ is None else environ
        found: dict[str, object] = {}
        for f in fields(cls):
            name = f"TRITONPROBE_{f.name.upper()}"
            text = env.get(name, "").strip()
            if not text and f.name == "rank":
                text = env.get("RANK", "").strip()
            if text:
                found[f.name] = _parse(name, text, f.name)
        try:
            return cls(**found)  # type: ignore[arg-type]  # _parse gives each field its type
        except SettingError as error:
            raise SettingError(f"TRITONPROBE_*: {error}") from None

    def with_(self, **changes: object) -> Settings:
        """A copy with `changes`. Raises SettingError on an unknown name."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise SettingError(f"unknown setting {name!r}; the settings are {', '.join(sorted(known))}")
        return replace(self, **changes)  # type: ignore[arg-type]  # __post_init__ checks


def _parse(variable: str, text: str, field: str) -> object:
    if field in ("series_budget", "buckets_per_kernel", "port", "history"):
        try:
            return int(text)
        except ValueError:
            raise SettingError(f"{variable}={text!r}: expected a whole number") from None
    if field == "host_windows":
        try:
            return float(text)
        except ValueError:
            raise SettingError(f"{variable}={text!r}: expected a number of seconds") from None
    if field == "disabled":
        if text.lower() not in ("0", "1", "true", "false", "yes", "no"):
            raise SettingError(f"{variable}={text!r}: expected 1 or 0")
        return text.lower() in ("1", "true", "yes")
    return text
