"""Killed at any write, fsync, rename or link: a cache, a bundle and a census are what they were, or whole.

The kills are real: strace lets the kernel send SIGKILL when the process enters its n-th such call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from tests.conftest import require_tool
from tests.prewarming.caches import add_entry, census_of, entries_in, is_whole
from tests.prewarming.killed import BEGIN
from tritonprobe.prewarming.bundle import pack, show
from tritonprobe.prewarming.install import install
from tritonprobe.shapes.census import Census

CALLS = "write,fsync,rename,renameat,renameat2,link,linkat,mkdir,unlink,unlinkat,rmdir"
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("environment")


def strace(what: str, source: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.prewarming.killed", what, str(source), str(target)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    return subprocess.run(
        [require_tool("strace"), *options, *program], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def calls_of(what: str, source: Path, target: Path, log: Path) -> list[tuple[str, int]]:
    """The calls that count, each with its number among its kind, from the beginning of the work on."""
    done = strace(what, source, target, "-o", str(log), "-e", f"trace={CALLS},stat,newfstatat")
    assert done.returncode == 0, done.stderr
    seen: dict[str, int] = {}
    found = []
    begun = False
    for line in log.read_text().splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None:
            continue
        seen[match[1]] = seen.get(match[1], 0) + 1
        if begun and match[1] in CALLS.split(","):
            found.append((match[1], seen[match[1]]))
        begun = begun or BEGIN in line
    assert begun
    return found


def at_each_call(what: str, source: Path, target: Path, reset: Callable[[], None], check: Callable[[], None]) -> int:
    reset()
    calls = calls_of(what, source, target, target.with_name("log"))
    check()
    for name, number in calls:
        reset()
        done = strace(what, source, target, "-o", os.devnull, "-e", f"inject={name}:signal=SIGKILL:when={number}")
        assert done.returncode == -9, (name, number, done.stderr)
        check()
    return len(calls)


@pytest.mark.slow
def test_a_cache_is_whole_whenever_the_install_is_killed(cache: Path, tmp_path: Path) -> None:
    bundle, there = tmp_path / "b.tpb", tmp_path / "there"
    pack(str(bundle), cache, census=census_of("add", "mul"))

    def reset() -> None:
        shutil.rmtree(there, ignore_errors=True)
        place = add_entry(there, "add")  # lacks what makes it an entry, so that it is completed
        (place / "__grp__add.json").unlink()
        (place / "add.cubin").unlink()

    def check() -> None:
        assert is_whole(there)
        install(str(bundle), there)  # and what was begun can be done again
        assert is_whole(there)
        assert entries_in(there) == 2
        census = there.with_name("there.census")
        if census.exists():
            assert Census.load(census) == census_of("add", "mul")

    assert at_each_call("install", bundle, there, reset, check) > 20


def test_a_bundle_is_the_old_one_or_the_new_one(cache: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.tpb"

    def reset() -> None:
        bundle.unlink(missing_ok=True)
        pack(str(bundle), cache)

    def check() -> None:
        manifest, _ = show(str(bundle))
        shutil.rmtree(tmp_path / "there", ignore_errors=True)
        install(str(bundle), tmp_path / "there")
        assert len(manifest.of("entries")) == 2

    assert at_each_call("pack", cache, bundle, reset, check) >= 3


def test_a_census_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    census_of("new").save(source)

    def reset() -> None:
        census_of("old").save(target)

    def check() -> None:
        assert Census.load(target) in (census_of("old"), census_of("new"))

    assert at_each_call("census", source, target, reset, check) >= 3
