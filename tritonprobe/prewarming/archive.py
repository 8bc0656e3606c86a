"""The container of a bundle: a tar inside Zstandard, written plainly and read with distrust. Knows no cache.

A reader follows the manifest, which comes first: each member has to be the next one of it, a regular file of the size
that it says. Nothing is ever extracted by tar itself, and what is unpacked is bounded before it is unpacked.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from tritonprobe.prewarming.manifest import EXTRA, MAX_MANIFEST, BundleError, File, Manifest

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
MAX_SIGNATURE = 4096
CHUNK = 1 << 20
_HEADERS = 1 << 20
"""Bytes that the headers of one member may take: names have 255 characters at most."""


def zstandard() -> Any:
    """The library, which is an extra. Raises BundleError."""
    try:
        import zstandard as library
    except ModuleNotFoundError:
        raise BundleError(f"bundles need zstandard: {EXTRA}") from None
    return library


def write(out: IO[bytes], manifest: bytes, signature: bytes | None, members: Iterable[tuple[str, bytes]]) -> None:
    """Writes an archive; the same contents are always the same bytes."""
    with (
        zstandard().ZstdCompressor(level=6).stream_writer(out, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, MANIFEST, manifest)
        if signature is not None:
            _add(tar, SIGNATURE, signature)
        for name, data in members:
            _add(tar, name, data)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))


class Reader:
    """An archive that is read once, front to back."""

    def __init__(self, stream: _Bounded, tar: tarfile.TarFile) -> None:
        self._stream = stream
        self._tar = tar
        found = self._next(_HEADERS)
        if found is None or found.name != MANIFEST:
            raise BundleError(f"no bundle: its first member is not {MANIFEST}")
        self.raw_manifest = self._data(found, MAX_MANIFEST)
        self.signature: bytes | None = None
        self._waiting = self._next(_HEADERS)
        if self._waiting is not None and self._waiting.name == SIGNATURE:
            self.signature = self._data(self._waiting, MAX_SIGNATURE)
            self._waiting = None
            self._read_on = True
        else:
            self._read_on = False

    def members(self, manifest: Manifest) -> Iterator[tuple[str, File, Iterator[bytes]]]:
        """Each member in the manifest's order, with its contents, whose digest is checked as they are read to the end.

        Raises BundleError at the first thing that is not as the manifest says.
        """
        for name, file in manifest.members():
            found = self._next(_HEADERS) if self._read_on else self._waiting
            self._read_on = True
            if found is None:
                raise BundleError(f"the bundle ends before {name}: it is truncated")
            if found.name != name:
                raise BundleError(f"member {found.name[:80]!r} is not {name}, which the manifest has there")
            if not found.isreg():
                raise BundleError(f"member {name} is a link or a special file")
            if found.size != file.size:
                raise BundleError(f"member {name} has {found.size} bytes, and {file.size} by the manifest")
            yield name, file, self._checked(found, name, file)
        last = self._next(_HEADERS) if self._read_on else self._waiting
        if last is not None:
            raise BundleError(f"member {last.name[:80]!r} is not in the manifest")
        with _named():
            self._stream.end(self._tar.offset)

    def _checked(self, member: tarfile.TarInfo, name: str, file: File) -> Iterator[bytes]:
        digest = hashlib.sha256()
        left = file.size
        self._stream.allow(file.size + _HEADERS)
        source = self._tar.extractfile(member)
        assert source is not None
        while left:
            with _named():
                piece = source.read(min(CHUNK, left))
            if not piece:
                raise BundleError(f"the bundle ends inside {name}: it is truncated")
            left -= len(piece)
            digest.update(piece)
            yield piece
        if digest.hexdigest() != file.sha256:
            raise BundleError(f"member {name} is not what the manifest says: its digest differs")

    def _next(self, room: int) -> tarfile.TarInfo | None:
        self._stream.allow(room)
        with _named():
            return self._tar.next()

    def _data(self, member: tarfile.TarInfo, most: int) -> bytes:
        if not member.isreg() or member.size > most:
            raise BundleError(f"member {member.name} is no file of up to {most} bytes")
        self._stream.allow(member.size + _HEADERS)
        with _named():
            source = self._tar.extractfile(member)
            data = b"" if source is None else source.read()
        if len(data) != member.size:
            raise BundleError(f"the bundle ends inside {member.name}: it is truncated")
        return data


@contextmanager
def reading(file: IO[bytes]) -> Iterator[Reader]:
    """An archive that is read from `file`. Raises BundleError if it is none."""
    unpacked = zstandard().ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_across_frames=True)
    stream = _Bounded(unpacked)
    stream.allow(_HEADERS)
    with _named():
        tar = tarfile.TarFile.open(fileobj=stream, mode="r|", bufsize=tarfile.RECORDSIZE)  # type: ignore[call-overload]
    with tar:
        yield Reader(stream, tar)


@contextmanager
def _named() -> Iterator[None]:
    """tar's and Zstandard's errors as ours."""
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        # What tar says of a stream that gives nothing, however much there is to unpack it from.
        why = "nothing in it can be unpacked" if str(error) == "empty file" else error
        raise BundleError(f"no bundle, or a truncated one ({why})") from None
    except zstandard().ZstdError as error:
        raise BundleError(f"no bundle, or a damaged one ({error})") from None


class _Bounded:
    """A stream from which no more can be read than was allowed: a header may claim any length."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = 0
        self._at = 0
        self._last = b""  # what was read last, up to there

    def allow(self, size: int) -> None:
        self._left = size + 2 * tarfile.RECORDSIZE  # tar reads whole records

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise BundleError("a member's header is larger than any that a bundle has")
        data: bytes = self._stream.read(size)
        self._left -= len(data)
        self._at += len(data)
        self._last = data
        return data

    def end(self, offset: int) -> None:
        """After the last member, at `offset`, come two empty blocks and what makes a record whole; nothing else may."""
        rest = self._last[len(self._last) - (self._at - offset) :]
        while len(rest) <= 2 * tarfile.RECORDSIZE and (more := self._stream.read(tarfile.RECORDSIZE)):
            rest += more
        records = -(-(offset + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE)
        if offset + len(rest) != records * tarfile.RECORDSIZE:
            raise BundleError(
                "the bundle does not end where its last member does: it is truncated, or something follows"
            )
        if any(rest):
            raise BundleError("something follows the bundle's last member")
