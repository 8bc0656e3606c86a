"""Bundles: what Triton's cache folder holds, packed to be carried to another machine. `install` is the other end.

A bundle is read from a folder and written whole or not at all; the same folder and census always give the same bytes.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonprobe.adapter.diskkey import entry_folder
from tritonprobe.adapter.environment import environment_for
from tritonprobe.prewarming import archive, signing
from tritonprobe.prewarming.folders import made_for, portable, read_folder
from tritonprobe.prewarming.manifest import CENSUS, MAX_MANIFEST, BundleError, File, Folder, Manifest
from tritonprobe.prewarming.places import opened, store
from tritonprobe.prewarming.plan import needed, untuned
from tritonprobe.shapes.census import Census


@dataclass(frozen=True, slots=True)
class Packed:
    manifest: Manifest
    size: int
    missing: tuple[str, ...]
    """Kernels of the census's variants that are not in the cache."""


def pack(
    place: str,
    cache: Path,
    *,
    census: Census | None = None,
    target: str | None = None,
    key: Path | None = None,
) -> Packed:
    """Packs a cache folder, or what a census needs of it, into `place`.

    With a `key` the bundle is signed, and holds the executable parts too. Raises BundleError, also if it has no entry.
    """
    if not cache.is_dir():
        raise BundleError(f"{cache}: is no folder; set TRITON_CACHE_DIR to Triton's cache")
    entries = [] if census is None else needed(census)[0]
    wanted = None if census is None else {entry_folder(entry.hash) for entry in entries}
    # Of those whose tuner is yet to choose, every binary: a census cannot name what was compiled for it.
    whole = frozenset() if census is None else {name.rpartition(".")[2] for name in untuned(census)}
    folders: list[Folder] = []
    targets: set[str] = set()
    for path in sorted(p for p in cache.iterdir() if p.is_dir()):
        found = read_folder(path, with_executables=key is not None)
        if found is None or not _is_wanted(found, wanted, whole):
            continue
        device = made_for(path) if found.kind == "entries" else None
        targets |= {device} if device else set()
        if target is None or device in (None, target):
            folders.append(found)
    environment = environment_for(_one_target(targets, target, cache, census is not None))
    text = None if census is None else census.text().encode()
    manifest = Manifest(
        environment,
        platform.machine(),
        tuple(sorted(folders, key=lambda folder: (folder.kind, folder.name))),
        None if text is None else File(CENSUS, len(text), hashlib.sha256(text).hexdigest()),
    )
    raw = manifest.text()
    if len(raw) > MAX_MANIFEST:
        raise BundleError(f"{len(folders)} folders are more than one bundle holds; pack by census")
    signature = None if key is None else signing.sign(raw, key)
    size = store(place, lambda out: archive.write(out, raw, signature, _contents(manifest, cache, text)))
    there = {folder.name for folder in folders}
    return Packed(manifest, size, tuple(sorted({e.kernel for e in entries if entry_folder(e.hash) not in there})))


def show(place: str) -> tuple[Manifest, bool]:
    """The manifest, and whether it is signed (by whom, only `install` checks). Raises BundleError."""
    with opened(place) as file, archive.reading(file) as reader:
        return Manifest.parse(reader.raw_manifest), reader.signature is not None


def _is_wanted(found: Folder, wanted: Collection[str | None] | None, whole: Collection[str]) -> bool:
    return wanted is None or found.kind != "entries" or found.name in wanted or found.kernel in whole


def _one_target(found: set[str], wanted: str | None, cache: Path, by_census: bool) -> str:
    there = ", ".join(sorted(found))
    if not found or wanted not in (None, *found):
        asked = " that the census needs" if by_census else ""
        rest = f"; it has some for {there}" if found else ""
        where = "" if wanted is None else f" for {wanted}"
        raise BundleError(f"{cache}: has no entries{asked}{where}{rest}: nothing was packed")
    if wanted is None and len(found) > 1:
        raise BundleError(f"{cache}: has entries for {there}; choose one with --target")
    return wanted or next(iter(found))


def _contents(manifest: Manifest, cache: Path, census: bytes | None) -> Iterator[tuple[str, bytes]]:
    for name, _ in manifest.members():
        if name == CENSUS:
            assert census is not None
            yield name, census
        else:
            _, folder, file = name.split("/")
            yield name, portable(cache / folder / file)
