"""C sources of ours as extension modules: built with the machine's compiler, and kept in the user's cache folder.

Triton compiles its launcher stubs in the same way, so where kernels can be launched there was a compiler at some time.
Where there is none now, or no header of Python's, `load` says None and the caller does without. Knows no Triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

log = logging.getLogger("tritonprobe")

BUILD_SECONDS = 15
DIGEST = hashlib.sha256().digest_size
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

_loaded: dict[str, ModuleType] = {}  # by the digest of the source: a module is never loaded twice


def load(source: Path) -> ModuleType | None:
    """The module of a C file, whose name it has; built unless it was before. Never raises.

    It may include the headers that lie beside it: with another text in one of them it is built anew.
    None if it cannot be built or loaded; the log's debug level has the reason.
    """
    try:
        content = b"".join(file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h"))))
        digest = hashlib.sha256(content).hexdigest()
        if digest in _loaded:
            return _loaded[digest]
        suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"  # names Python's version and its ABI
        name = f"{source.stem}-{digest[:16]}{suffix}"
        with _folder() as folder:
            built = folder / name
            if not _is_whole(built):
                _build(source, built)
            return _loaded.setdefault(digest, _import(source.stem, built))
    except (OSError, RuntimeError, ValueError, ImportError, subprocess.SubprocessError) as error:
        # RuntimeError: there is no home; ValueError: CC is no command line
        said = getattr(error, "stderr", None)
        log.debug("tritonprobe: %s is not compiled: %s %s", source.name, error, (said or b"").decode(errors="replace"))
        return None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """The user's cache folder for us, or one of this process alone where that is not ours to trust or to write."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (named if named.is_absolute() else Path("~/.cache").expanduser()) / "tritonprobe"
    if _is_ours(folder):
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="tritonprobe-") as alone:
            yield Path(alone)


def _is_ours(folder: Path) -> bool:
    """Whether we may write to it and nobody else may: what lies there is loaded into this process."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK)


def compiler() -> Sequence[str] | None:
    """The command of a C compiler: what CC says, or gcc, clang or cc as found on the PATH."""
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    found = next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)
    return None if found is None else (found,)


def _is_whole(built: Path) -> bool:
    """Whether the module is there as it was built: loading a damaged one ends the process."""
    if not built.is_file():  # a pipe would be waited for
        return False
    content = built.read_bytes()
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _build(source: Path, built: Path) -> None:
    command = compiler()
    if command is None:
        raise FileNotFoundError("there is no C compiler on the PATH")
    scratch = built.with_name(f".{built.name}.{secrets.token_hex(8)}")  # of this thread alone
    try:
        subprocess.run(
            [*command, *FLAGS, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(scratch)],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=BUILD_SECONDS,
        )
        content = scratch.read_bytes()
        with scratch.open("ab") as file:  # bytes behind its end do not disturb a shared object
            file.write(hashlib.sha256(content).digest())
        scratch.replace(built)  # whole, or not at all: others may be loading it
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _import(name: str, built: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(built))
    spec = importlib.util.spec_from_file_location(name, built, loader=loader)
    if spec is None:
        raise ImportError(f"{built} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
