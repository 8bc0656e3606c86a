"""Folders of Triton's cache, as files: which are whole, what they hold, and how that travels. Knows the layout only."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from tritonprobe.documents import read_json
from tritonprobe.prewarming.manifest import BundleError, File, Folder, Kind, check_name, is_executable

GROUP = "__grp__"
"""What the name of the file begins with that names the others of an entry, by absolute paths."""


def read_folder(path: Path, *, with_executables: bool) -> Folder | None:
    """A folder of the cache as a bundle has it; None for one that is incomplete, or nothing of Triton's."""
    names = sorted(p.name for p in path.iterdir() if p.is_file())
    groups = [name for name in names if name.startswith(GROUP)]
    libraries = [name for name in names if is_executable(name)]
    kind: Kind
    if groups:
        kind, keep, kernel = "entries", [n for n in names if not is_executable(n) and n != "lock"], groups[0]
        if not all(_is_complete(path, group) for group in groups):
            return None
    elif any(name.endswith(".autotune.json") for name in names):
        kind, keep = "autotune", [name for name in names if name.endswith(".autotune.json")]
        kernel = keep[0]
    elif libraries and with_executables:
        kind, keep, kernel = "executables", libraries, libraries[0]
    else:
        return None
    if entry_name := _entry_name(path.name):
        kernel = kernel.removeprefix(GROUP).partition(".")[0]
        files = tuple(_file(path / name) for name in keep)
        return Folder(kind, entry_name, kernel, files)
    return None


def _entry_name(name: str) -> str | None:
    return name if len(name) == 52 and not name.startswith(".") else None


def _file(path: Path) -> File:
    data = portable(path)
    return File(check_name(str(path), path.name), len(data), hashlib.sha256(data).hexdigest())


def portable(path: Path) -> bytes:
    """A file's contents as they are in a bundle: a group names its files without their folder."""
    data = path.read_bytes()
    if not path.name.startswith(GROUP):
        return data
    group = group_of(data, str(path))
    return json.dumps({"child_paths": {name: Path(place).name for name, place in sorted(group.items())}}).encode()


def group_of(data: bytes, at: str) -> dict[str, str]:
    try:
        group = read_json(data)["child_paths"]
        if not all(isinstance(place, str) for place in group.values()):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BundleError(f"{at}: is no group file of Triton's") from None
    return dict(group)


def _is_complete(path: Path, group: str) -> bool:
    try:
        children = group_of((path / group).read_bytes(), group)
    except (BundleError, OSError):
        return False
    return all((path / Path(place).name).is_file() for place in children.values())


def made_for(path: Path) -> str | None:
    for file in path.glob("*.json"):
        if not file.name.startswith(GROUP):
            with suppress(OSError, ValueError, KeyError, TypeError):
                target = read_json(file.read_bytes())["target"]
                return f"{target['backend']}:{target['arch']}"
    return None


def differs(there: Path, ours: Path) -> bool:
    if there.name.startswith(GROUP):
        return False  # paths; its files are compared
    one, other = there.read_bytes(), ours.read_bytes()
    return one != other and _without_paths(one) != _without_paths(other)


def _without_paths(data: bytes) -> object:
    """Metadata without the place that Triton was installed at; anything else as it is."""
    try:
        found = read_json(data)
    except ValueError:
        return data
    return {k: v for k, v in found.items() if k != "extern_libs"} if isinstance(found, dict) else found
