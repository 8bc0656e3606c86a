"""C sources of ours as extension modules: built once with the machine's compiler, then kept beside Triton's own stubs.

Triton compiles its launcher stubs the same way, so where kernels can be launched there was a compiler at some time.
Where there is none now, or no header of Python's, `load` says None and the caller goes on in Python. Knows no Triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

log = logging.getLogger("tritonprobe")

BUILD_SECONDS = 60
DIGEST = hashlib.sha256().digest_size
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

_loaded: dict[str, ModuleType] = {}  # by the digest of the source: a module is never loaded twice


def load(source: Path, folder: Path | None) -> ModuleType | None:
    """The module of a C file, whose name it has; built into `folder` unless it is there or loaded. Never raises.

    None if it is not there and cannot be built there; the log's debug level has the reason.
    """
    if folder is None:
        return None
    try:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        if digest in _loaded:
            return _loaded[digest]
        suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"  # names Python's version and its ABI
        built = folder / f"{source.stem}-{digest[:16]}{suffix}"
        if not _is_whole(built):
            _build(source, built)
        return _loaded.setdefault(digest, _import(source.stem, built))
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None)
        log.debug("tritonprobe: %s is not compiled: %s %s", source.name, error, (said or b"").decode(errors="replace"))
        return None


def compiler() -> Sequence[str] | None:
    """The command of a C compiler: what CC says, or gcc, clang or cc as found on the PATH."""
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    found = next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)
    return None if found is None else (found,)


def _is_whole(built: Path) -> bool:
    """Whether the module is there as it was built: loading a damaged one ends the process."""
    try:
        content = built.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _build(source: Path, built: Path) -> None:
    command = compiler()
    if command is None:
        raise FileNotFoundError("there is no C compiler on the PATH")
    built.parent.mkdir(parents=True, exist_ok=True)
    scratch = built.with_name(f".{built.name}.{os.getpid()}")
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
