"""Where a bundle is: a file, or any URL that fsspec knows. Written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tritonprobe.files import replacing
from tritonprobe.prewarming.manifest import EXTRA, BundleError


@contextmanager
def opened(place: str) -> Iterator[IO[bytes]]:
    """The bundle at `place`, for reading. Raises BundleError if there is none."""
    try:
        file = _fsspec(place).open(place, "rb").open() if "://" in place else Path(place).open("rb")  # noqa: SIM115
    except BundleError:
        raise
    except OSError as error:
        raise BundleError(f"{place}: {error.strerror or error}") from None
    except Exception as error:  # each store has errors of its own
        raise BundleError(f"{place}: {type(error).__name__}: {error}") from None
    with file:
        yield file


def store(place: str, write: Callable[[IO[bytes]], None]) -> int:
    """Writes to `place` what `write` writes; gives its size. Raises BundleError; what was there is then what it was."""
    if "://" in place:
        return _upload(place, write)
    try:
        with replacing(Path(place)) as file:
            write(file)
            return file.tell()
    except OSError as error:
        raise BundleError(f"{place}: {error.strerror}") from None


def _upload(place: str, write: Callable[[IO[bytes]], None]) -> int:
    """First a file here, so that the store gets all of it at once."""
    library = _fsspec(place)
    with tempfile.TemporaryFile() as whole:
        write(whole)
        size = whole.tell()
        whole.seek(0)
        try:
            with library.open(place, "wb") as there:
                shutil.copyfileobj(whole, there)
        except Exception as error:
            raise BundleError(f"{place}: {type(error).__name__}: {error}") from None
    return size


def _fsspec(place: str) -> Any:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise BundleError(f"{place}: a URL needs fsspec: {EXTRA}") from None
    return fsspec
