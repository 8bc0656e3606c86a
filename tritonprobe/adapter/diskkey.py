"""Why a variant that was compiled before is not found on disk: the part of Triton's key that changed.

Triton's disk key is one hash over its own version, the kernel's source and line, the classes of the arguments, the
target with ptxas, the options and some environment variables; the hash alone does not tell which of them changed. So
beside the entries, in ``<cache folder>/.tritonprobe/``, one small file a variant keeps the parts, as text and short
digests. It is read once for each compile and written after it. Touches Triton's cache folder setting; never Triton's
entries.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonprobe.documents import read_json
from tritonprobe.model import Variant

FOLDER = ".tritonprobe"
FORMAT = 1
MAX_BYTES = 65_536

Parts = dict[str, str]
_ENV = "env "
_CALLS = "what the kernel calls"


def parts_of(source: Any, backend: Any, options: Any, env: Mapping[str, Any]) -> Parts:
    """What Triton's disk key is made of, each part apart. Raises whatever an unknown Triton gives reason to."""
    import triton
    from triton.runtime import cache

    fn = source.fn
    return {
        "triton": f"{triton.__version__} {_digest(cache.triton_key())}",
        "source": _digest(fn.src),
        "line": str(fn.starting_line_number),
        _CALLS: _digest(fn.cache_key),
        "signature": _digest(str((source.signature, source.attrs))),
        "constants": _digest(str(sorted(map(str, source.constants)))),
        "target": str(backend.target.arch),
        "ptxas": _digest(str(backend.hash())),
        "options": _digest(str(options.hash())),
        **{f"{_ENV}{name}": str(value) for name, value in sorted(env.items())},
    }


def why_not_on_disk(folder: Path, variant: Variant, parts: Parts) -> tuple[str, ...]:
    """One line for each part that differs from the last time this variant was compiled with this cache.

    Nothing for a first time. Never raises: a file that cannot be read is no evidence.
    """
    before = _read(_file(folder, variant))
    if before is None:
        return ()
    changed = {name for name in before.keys() | parts.keys() if before.get(name) != parts.get(name)}
    if changed & {"source", "line"}:
        changed.discard(_CALLS)  # its digest contains both
    if "target" in changed:
        changed -= {"ptxas", "options"}  # so do these the target
    if not changed:
        return ("not on disk though nothing changed, so the entry is gone or unreadable",)
    order = [name for name in (*parts, *before) if name in changed]
    return tuple(_line(name, before.get(name), parts.get(name)) for name in dict.fromkeys(order))


def remember(folder: Path, variant: Variant, parts: Parts) -> None:
    """Keeps the parts of a variant that was just compiled. A folder that cannot be written is left alone."""
    file = _file(folder, variant)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_suffix(f".{secrets.token_hex(8)}.tmp")  # containers that share a cache share numbers, too
        try:
            temporary.write_text(json.dumps({"format": FORMAT, "parts": parts}, sort_keys=True))
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)  # of a full disk


def cache_folder() -> Path | None:
    """Where Triton keeps its entries now; None where it has no folder."""
    from triton import knobs

    return Path(knobs.cache.dir) if knobs.cache.dir else None


def is_read() -> bool:
    """Whether Triton looks there before it compiles."""
    from triton import knobs

    return not knobs.compilation.always_compile


def entry_folder(digest: str) -> str | None:
    """The name of the folder in it that a binary with this hash lies in; None if it is no hash."""
    if len(digest) != 64:  # SHA-256 in hexadecimal
        return None
    try:
        return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")
    except ValueError:
        return None


# Options whose defaults follow the target or ptxas: they are parts of the key, not of the variant.
_TARGET_OPTIONS = frozenset(
    {"ptx_version", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default"}
)


def _line(name: str, before: str | None, now: str | None) -> str:
    if name.startswith(_ENV) or name in ("triton", "line", "target"):
        return f"not on disk since {name.removeprefix(_ENV)} went from {_shown(before)} to {_shown(now)}"
    return f"not on disk since {name} changed"


def _shown(value: str | None) -> str:
    return "unset" if value is None else value[:60] or "empty"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _file(folder: Path, variant: Variant) -> Path:
    """The same name for the same kernel, classes and options, whatever else changed."""
    options = [(name, value) for name, value in variant.options if name not in _TARGET_OPTIONS]
    text = json.dumps([variant.kernel, [[n, c.type, c.value] for n, c in variant.args], options])
    return folder / FOLDER / f"{_digest(text)}.json"


def _read(file: Path) -> Parts | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        found = read_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("parts"), dict):
        return None
    return {str(name): str(value) for name, value in found["parts"].items()}
