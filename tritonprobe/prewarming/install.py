"""Puts a bundle into Triton's cache folder, as if Triton itself had written it there, or leaves the folder as it is.

Everything is verified in a folder aside before the first entry is put in its place, each by one rename; an entry that
is there is never touched but for files that it lacks. So a kill at any time leaves whole entries, and perhaps a folder
aside, which an install that comes an hour later removes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tritonprobe.adapter.diskkey import FOLDER
from tritonprobe.adapter.environment import differences, environment_for
from tritonprobe.prewarming import archive, signing
from tritonprobe.prewarming.folders import GROUP, differs, group_of
from tritonprobe.prewarming.manifest import CENSUS, BundleError, Folder, Manifest
from tritonprobe.prewarming.places import opened
from tritonprobe.shapes.census import Census, CensusError, Environment
from tritonprobe.wording import counted

STALE_SECONDS = 3600.0
"""An install whose folder was touched last so long ago has died in it."""
MAX_SIZE = 4 << 30
"""Bytes of a bundle's contents that an install takes by default."""


@dataclass(slots=True)
class Installed:
    installed: int = 0
    completed: int = 0
    """Entries that were there with files missing."""
    there_before: int = 0
    different: list[str] = field(default_factory=list)
    """Folders that hold something else; left as they are."""
    not_installed: int = 0
    """Executable parts, which nobody vouched for: they are built here when they are needed."""
    census: Path | None = None


def install(
    place: str,
    cache: Path,
    *,
    target: str | None = None,
    key: Path | None = None,
    census: Path | None = None,
    most: int = MAX_SIZE,
) -> Installed:
    """Installs a bundle into a cache folder. ``key`` is the public key whose signature is required.

    Raises BundleError, with nothing changed, if anything about the bundle is not as it should be, or if no entry of it
    would ever be found by this process's Triton.
    """
    result = Installed()
    with opened(place) as file, archive.reading(file) as reader:
        if key is not None:
            signing.verify(reader.raw_manifest, reader.signature, key)
        manifest = Manifest.parse(reader.raw_manifest)
        if manifest.size > most:
            raise BundleError(f"its contents have {manifest.size:,} bytes, and {most:,} are allowed (--max-size)")
        _check_fits(manifest, environment_for(target))
        staging = _staging(cache)
        try:
            _unpack(reader, manifest, staging)
            for folder in manifest.folders:
                if folder.kind == "executables" and key is None:
                    result.not_installed += len(folder.files)
                    continue
                if folder.kind == "entries":
                    _rewrite_group(staging / folder.kind / folder.name, cache / folder.name, folder)
            _check_census(staging, manifest, census)
            for folder in manifest.folders:
                if folder.kind != "executables" or key is not None:
                    _put(staging / folder.kind / folder.name, cache / folder.name, folder, result)
            if census is not None:
                Census.load(staging / CENSUS).save(census)
                result.census = census
            _sync(cache)
        except OSError as error:
            raise BundleError(f"{error.filename or cache}: {error.strerror}") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # what was made for it and has nothing in it
                staging.parent.rmdir()
                cache.rmdir()
    return result


def _check_fits(manifest: Manifest, here: Environment) -> None:
    found = differences(manifest.environment, here)
    if found:
        entries = counted(len(manifest.of("entries")), "entry")
        raise BundleError(f"{'; '.join(found)}: 0 of {entries} would hit, so nothing was installed")


def _staging(cache: Path) -> Path:
    """A fresh folder inside the cache, so that a rename puts things in place. Those of dead installs go.

    Others may install there at the same time, in other containers and under the same number.
    """
    aside = cache / FOLDER
    for left in aside.glob("bundle-*.part"):
        with suppress(OSError):  # its install comes to its end
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    try:
        return _made_in(aside)
    except OSError as error:
        raise BundleError(f"{cache}: cannot be written to ({error.strerror})") from None


def _made_in(aside: Path, tries: int = 10) -> Path:
    """A folder in there. Another install that ends takes away what is empty by then, be it between any two of these."""
    try:
        aside.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(".part", "bundle-", aside))
    except FileNotFoundError:
        if tries == 1:
            raise
        return _made_in(aside, tries - 1)


def _unpack(reader: archive.Reader, manifest: Manifest, staging: Path) -> None:
    for name, _, pieces in reader.members(manifest):
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())


def _rewrite_group(staged: Path, final: Path, folder: Folder) -> None:
    """Gives the group's files the paths that they will have."""
    names = {file.name for file in folder.files}
    for name in names:
        if name.startswith(GROUP):
            children = group_of((staged / name).read_bytes(), f"{folder.name}/{name}")
            if not set(children.values()) <= names:
                raise BundleError(f"{folder.name}/{name}: names a file that is not in its folder")
            paths = {child: str(final / place) for child, place in children.items()}
            with (staged / name).open("w", encoding="utf-8") as out:
                out.write(json.dumps({"child_paths": paths}))
                out.flush()
                os.fsync(out.fileno())


def _check_census(staging: Path, manifest: Manifest, wanted: Path | None) -> None:
    if manifest.census is not None:
        try:
            Census.parse((staging / CENSUS).read_bytes())
        except CensusError as error:
            raise BundleError(f"{CENSUS} in it: {error}") from None
    elif wanted is not None:
        raise BundleError("there is no census in it")


def _put(staged: Path, final: Path, folder: Folder, result: Installed) -> None:
    """One folder, into its place."""
    _sync(staged)
    try:
        staged.rename(final)  # over nothing, or over an empty folder, which Triton leaves when it finds nothing
    except OSError:
        if not final.is_dir():
            raise
        _complete(staged, final, folder, result)
        return
    result.installed += 1


def _complete(staged: Path, final: Path, folder: Folder, result: Installed) -> None:
    names = [file.name for file in folder.files]
    if any(differs(final / name, staged / name) for name in names if (final / name).exists()):
        result.different.append(f"{folder.kernel} ({folder.name})")
        return
    missing = [name for name in names if not (final / name).exists()]
    # The group's file last: with it the entry is whole for Triton.
    for name in sorted(missing, key=lambda name: name.startswith(GROUP)):
        with suppress(FileExistsError):  # somebody compiled it meanwhile
            os.link(staged / name, final / name)
    _sync(final)
    if missing:
        result.completed += 1
    else:
        result.there_before += 1


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
