"""Bundles taken apart and put together again as nobody packed them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tritonprobe.prewarming import archive


def members_of(place: str | Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with Path(place).open("rb") as file, archive.zstandard().ZstdDecompressor().stream_reader(file) as raw:
        tar = tarfile.open(fileobj=io.BytesIO(raw.read()))  # noqa: SIM115
    return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def edit(
    place: str | Path,
    folder: Path,
    *,
    manifest: Callable[[dict[str, Any]], dict[str, Any]] = lambda m: m,
    members: Callable[[list[tuple[tarfile.TarInfo, bytes]]], list[tuple[tarfile.TarInfo, bytes]]] = lambda m: m,
) -> str:
    """An edited bundle."""
    (first, text), *rest = members_of(place)
    text = json.dumps(manifest(json.loads(text))).encode()
    first.size = len(text)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, data in [(first, text), *members(rest)]:
            tar.addfile(member, io.BytesIO(data))
    edited = folder / "edited.tpb"
    edited.write_bytes(archive.zstandard().ZstdCompressor().compress(out.getvalue()))
    return str(edited)


def with_group(place: str | Path, folder: Path, name: str, data: bytes) -> str:
    """An edited bundle, in which the group file of `name` holds `data`, and the manifest says so."""
    return with_member(place, folder, f"__grp__{name}.json", data)


def with_member(place: str | Path, folder: Path, name: str, data: bytes) -> str:
    """An edited bundle, in which the file `name` holds `data`, and the manifest says so."""

    def members(found: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
        for i, (member, _) in enumerate(found):
            if Path(member.name).name == name:
                member.size = len(data)
                found[i] = (member, data)
        return found

    def manifest(document: dict[str, Any]) -> dict[str, Any]:
        for file in (document["census"], *(file for entry in document["folders"] for file in entry["files"])):
            if file["name"] == name:
                file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return document

    return edit(place, folder, manifest=manifest, members=members)
