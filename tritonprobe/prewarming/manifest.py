"""What is in a bundle: the manifest, its first member, and every check of it. Pure.

All names and sizes that an install acts on come from here, so that the archive's own headers have only to agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tritonprobe.documents import read_json
from tritonprobe.shapes.census import CensusError, Environment
from tritonprobe.shapes.census_json import environment_from, environment_to

FORMAT = "tritonprobe bundle"
VERSION = 1
MAX_MANIFEST = 64 << 20
MAX_FILE = (1 << 63) - 1
"""Bytes of a file that a manifest may claim: more than any disk has."""
CENSUS = "census.json"

Kind = Literal["entries", "autotune", "executables"]
"""Binaries and what they were compiled from; winners that Triton keeps itself; launcher stubs, which the CPU runs."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_FOLDER = re.compile(r"[A-Z2-7]{52}")  # a SHA-256 in base 32: what Triton calls its folders
_EXECUTABLE = re.compile(r"\.(so(\.\d+)*|pyd|dll|py|pyc|pkl|pickle|pt)$", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-f]{64}")


EXTRA = "pip install '.[bundle]' in tritonprobe's checkout brings all that bundles need"


class BundleError(Exception):
    """A bundle that cannot be used, or made; one sentence says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder of Triton's cache. ``kernel`` is for people."""

    kind: Kind
    name: str
    kernel: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    environment: Environment
    machine: str
    folders: tuple[Folder, ...] = ()
    census: File | None = None

    def of(self, kind: Kind) -> list[Folder]:
        return [folder for folder in self.folders if folder.kind == kind]

    @property
    def size(self) -> int:
        return sum(folder.size for folder in self.folders) + (self.census.size if self.census else 0)

    def members(self) -> Iterator[tuple[str, File]]:
        """The archive's members after the manifest and the signature, in their order."""
        if self.census is not None:
            yield CENSUS, self.census
        for folder in self.folders:
            for file in folder.files:
                yield f"{folder.kind}/{folder.name}/{file.name}", file

    def text(self) -> bytes:
        document = {
            "format": FORMAT,
            "version": VERSION,
            "environment": environment_to(self.environment),
            "machine": self.machine,
            "folders": [
                {"kind": f.kind, "name": f.name, "kernel": f.kernel, "files": [_file_to(file) for file in f.files]}
                for f in self.folders
            ],
            "census": None if self.census is None else _file_to(self.census),
        }
        return json.dumps(document, sort_keys=True, indent=1).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Raises BundleError."""
        try:
            document = read_json(text)
        except ValueError as error:
            raise BundleError(f"no bundle: its manifest is no JSON ({error})") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise BundleError(f'no bundle: the manifest\'s "format" is not "{FORMAT}"')
        version = document.get("version")
        if version != VERSION or type(version) is not int:  # true is 1 to Python
            raise BundleError(
                f"bundle version {str(version)[:20]}: this tritonprobe reads version {VERSION}; update it"
            )
        try:
            environment = environment_from("environment", document.get("environment"))
        except CensusError as error:
            raise BundleError(f"manifest: {error}") from None
        folders = document.get("folders")
        if not isinstance(folders, list):
            raise BundleError("manifest: folders: expected a list")
        census = document.get("census")
        made = cls(
            environment,
            _text(document, "machine", "machine"),
            tuple(_folder(f"folders[{i}]", row) for i, row in enumerate(folders)),
            None if census is None else _file("census", census),
        )
        names = [folder.name for folder in made.folders]
        if len(set(names)) != len(names):
            raise BundleError("manifest: a folder is there twice")
        return made


def check_name(at: str, name: Any) -> str:
    """A file's name, and nothing else: no path, no hidden file. Raises BundleError."""
    good = (
        isinstance(name, str)
        and 0 < len(name.encode(errors="replace")) <= 255
        and name.isprintable()
        and "/" not in name
        and "\\" not in name
        and not name.startswith(".")
    )
    if not good:
        raise BundleError(f"{at}: {str(name)[:60]!r} is not a file's name")
    return str(name)


def _folder(at: str, row: Any) -> Folder:
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        raise BundleError(f"manifest: {at}.kind: expected one of {', '.join(KINDS)}")
    name = _text(row, "name", at)
    if not _FOLDER.fullmatch(name):
        raise BundleError(f"manifest: {at}.name: {name[:60]!r} is no folder of Triton's cache")
    rows = row.get("files")
    if not isinstance(rows, list) or not rows:
        raise BundleError(f"manifest: {at}.files: expected a list of files")
    files = tuple(_file(f"{at}.files[{i}]", file) for i, file in enumerate(rows))
    if len({file.name for file in files}) != len(files):
        raise BundleError(f"manifest: {at}: a file is there twice")
    executable = [file.name for file in files if is_executable(file.name)]
    if executable and row["kind"] != "executables":
        raise BundleError(f"manifest: {at}: {executable[0]} is executable, and not among the executables")
    return Folder(row["kind"], name, _text(row, "kernel", at), files)


def is_executable(name: str) -> bool:
    """Whether the CPU would run it, or Python unpickle it."""
    return _EXECUTABLE.search(name) is not None


def _file(at: str, row: Any) -> File:
    if not isinstance(row, dict):
        raise BundleError(f"manifest: {at}: expected an object")
    size, digest = row.get("size"), row.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_FILE:
        raise BundleError(f"manifest: {at}.size: expected a whole number")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BundleError(f"manifest: {at}.sha256: expected a digest")
    return File(check_name(f"manifest: {at}", row.get("name")), size, digest)


def _file_to(file: File) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "sha256": file.sha256}


def _text(row: Mapping[str, Any], name: str, at: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise BundleError(f"manifest: {at}.{name}: expected text")
    return value
