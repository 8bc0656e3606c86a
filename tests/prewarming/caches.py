"""Small cache folders as Triton lays them out, made without Triton: an entry, an autotuner's result, a stub."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from tritonprobe.prewarming import bundle, install
from tritonprobe.shapes.census import Census, Entry, Environment

HERE = Environment("3.6.0", "key", "cuda:90", "ptxas", "none", "2.11.0", "3.12.3", (("USE_IR_LOC", "1"),))


def folder_of(digest: str) -> str:
    return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def add_entry(cache: Path, kernel: str, target: str = "cuda:90") -> Path:
    place = cache / folder_of(hash_of(kernel))
    place.mkdir(parents=True)
    backend, arch = target.split(":")
    metadata = {"target": {"backend": backend, "arch": int(arch)}, "extern_libs": [["libdevice", str(cache)]]}
    for name, data in (
        (f"{kernel}.cubin", f"binary of {kernel}".encode() * 20),
        (f"{kernel}.source", kernel.encode()),
        (f"{kernel}.json", json.dumps(metadata).encode()),
    ):
        (place / name).write_bytes(data)
    children = {p.name: str(p) for p in sorted(place.iterdir())}
    (place / f"__grp__{kernel}.json").write_text(json.dumps({"child_paths": children}))
    return place


def add_result(cache: Path, kernel: str) -> None:
    place = cache / folder_of(hash_of(f"tuning of {kernel}"))
    place.mkdir(parents=True)
    (place / f"{kernel}.autotune.json").write_text(json.dumps({"key": [1], "configs_timings": []}))


def add_stub(cache: Path, name: str) -> None:
    place = cache / folder_of(hash_of(f"stub {name}"))
    place.mkdir(parents=True)
    (place / f"{name}.cpython-312-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")


def census_of(*kernels: str) -> Census:
    entries = [Entry(f"m.{k}", hash_of(k), HERE.id, "m", k, "s", "{}", ()) for k in kernels]
    return Census.of([HERE], entries, (), {(f"m.{k}", "all"): 1 for k in kernels})


def is_whole(cache: Path) -> bool:
    """Whether each entry that Triton would take for one has all of its files, and none is cut short."""
    for group in cache.glob("*/__grp__*"):
        for name, path in json.loads(group.read_text())["child_paths"].items():
            if Path(path).parent != group.parent or Path(path).name != name or not Path(path).stat().st_size:
                return False
    return True


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def entries_in(cache: Path) -> int:
    return len(list(cache.glob("*/__grp__*")))


def environment_for(target: str | None) -> Environment:
    """In the place of what asks Triton."""
    from dataclasses import replace

    return HERE if target in (None, "cuda:90") else replace(HERE, target=target)


def without_triton() -> None:
    for module in (bundle, install):
        setattr(module, "environment_for", environment_for)  # noqa: B010  # not a name of theirs, to mypy
