"""Bundles: what is packed is what Triton finds elsewhere, and nothing that is there is overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("zstandard")

from tests.prewarming import caches
from tests.prewarming.caches import add_entry, census_of, entries_in, everything_in, is_whole
from tests.prewarming.tampering import edit
from tritonprobe.adapter.diskkey import FOLDER
from tritonprobe.cli import main
from tritonprobe.prewarming import install as installing
from tritonprobe.prewarming.bundle import pack, show
from tritonprobe.prewarming.install import install
from tritonprobe.prewarming.manifest import BundleError, Manifest
from tritonprobe.shapes.census import Census

pytestmark = pytest.mark.usefixtures("environment")


def test_what_is_installed_is_what_was_packed_with_paths_of_its_new_place(
    cache: Path, bundle: str, there: Path, tmp_path: Path
) -> None:
    result = install(bundle, there, census=tmp_path / "census.json")
    assert (result.installed, result.there_before, result.different) == (3, 0, [])
    assert entries_in(there) == 2
    assert is_whole(there)
    groups = {name: data for name, data in everything_in(cache).items() if "__grp__" in name}
    packed = {
        name: data for name, data in everything_in(cache).items() if name not in groups and ".so" not in name[-3:]
    }
    assert everything_in(there) == {
        **packed,
        **{name: data.replace(str(cache).encode(), str(there).encode()) for name, data in groups.items()},
    }
    assert Census.load(tmp_path / "census.json") == census_of("add", "mul")


def test_installing_twice_changes_nothing(bundle: str, there: Path) -> None:
    install(bundle, there)
    before = everything_in(there)
    again = install(bundle, there)
    assert (again.installed, again.there_before) == (0, 3)
    assert everything_in(there) == before


def test_several_may_install_into_one_cache_at_the_same_time(bundle: str, there: Path) -> None:
    """As the pods of a fleet do, whose processes have the same number."""
    with ThreadPoolExecutor(4) as pods:
        results = list(pods.map(lambda _: install(bundle, there), range(8)))
    assert sum(result.installed for result in results) == 3
    assert all(result.installed + result.completed + result.there_before == 3 for result in results)
    assert not (there / FOLDER).exists()


def test_what_a_dead_install_left_goes_after_an_hour(bundle: str, there: Path) -> None:
    for name, age in (("bundle-dead.part", 3700), ("bundle-alive.part", 3500)):
        left = there / FOLDER / name
        left.mkdir(parents=True)
        os.utime(left, (time.time() - age,) * 2)
    assert install(bundle, there).installed == 3
    assert [left.name for left in (there / FOLDER).iterdir()] == ["bundle-alive.part"]


def test_the_same_cache_is_always_the_same_bundle(cache: Path, bundle: str, tmp_path: Path) -> None:
    pack(str(tmp_path / "again.tpb"), cache, census=census_of("add", "mul"))
    assert (tmp_path / "again.tpb").read_bytes() == Path(bundle).read_bytes()


def test_a_census_chooses_what_is_packed_and_what_is_missing_is_named(cache: Path, tmp_path: Path) -> None:
    packed = pack(str(tmp_path / "b.tpb"), cache, census=census_of("add", "sub"))
    assert [folder.kernel for folder in packed.manifest.of("entries")] == ["add"]
    assert packed.missing == ("m.sub",)


def test_what_triton_has_not_finished_is_not_packed(cache: Path, tmp_path: Path) -> None:
    (add_entry(cache, "half") / "half.cubin").unlink()
    packed = pack(str(tmp_path / "b.tpb"), cache)
    assert sorted(folder.kernel for folder in packed.manifest.of("entries")) == ["add", "mul"]


def test_a_cache_of_two_devices_has_to_be_chosen_from(cache: Path, tmp_path: Path) -> None:
    add_entry(cache, "big", "cuda:100")
    with pytest.raises(BundleError, match="has entries for cuda:100, cuda:90; choose one with --target"):
        pack(str(tmp_path / "b.tpb"), cache)
    packed = pack(str(tmp_path / "b.tpb"), cache, target="cuda:100")
    assert [folder.kernel for folder in packed.manifest.of("entries")] == ["big"]
    assert packed.manifest.environment.target == "cuda:100"


@pytest.mark.parametrize(
    ("kernels", "target", "says"),
    [
        (None, "cuda:80", "has no entries for cuda:80; it has some for cuda:90: nothing was packed"),
        (("add",), "cuda:80", "has no entries that the census needs for cuda:80; it has some for cuda:90: nothing"),
        (("sub",), "cuda:90", "has no entries that the census needs for cuda:90: nothing was packed"),
        (("sub",), None, "has no entries that the census needs: nothing was packed"),
    ],
)
def test_a_bundle_of_no_kernel_is_none(
    cache: Path, tmp_path: Path, kernels: tuple[str, ...] | None, target: str | None, says: str
) -> None:
    """A tuning result is there each time: where it is for, it does not say."""
    census = None if kernels is None else census_of(*kernels)
    with pytest.raises(BundleError, match=f"^{cache}: {says}"):
        pack(str(tmp_path / "b.tpb"), cache, census=census, target=target)
    assert not (tmp_path / "b.tpb").exists()


@pytest.mark.parametrize("target", [None, "cuda:90"])
def test_an_empty_cache_makes_no_bundle(tmp_path: Path, target: str | None) -> None:
    (tmp_path / "cache").mkdir()
    with pytest.raises(BundleError, match="has no entries"):
        pack(str(tmp_path / "b.tpb"), tmp_path / "cache", target=target)
    assert not (tmp_path / "b.tpb").exists()


def test_an_empty_folder_that_triton_left_is_filled(bundle: str, there: Path) -> None:
    (there / caches.folder_of(caches.hash_of("add"))).mkdir(parents=True)
    assert install(bundle, there).installed == 3
    assert is_whole(there)


def test_an_entry_that_lacks_files_is_completed(bundle: str, there: Path) -> None:
    install(bundle, there)
    place = there / caches.folder_of(caches.hash_of("add"))
    (place / "__grp__add.json").unlink()
    (place / "add.cubin").unlink()
    result = install(bundle, there)
    assert (result.completed, result.there_before) == (1, 2)
    assert is_whole(there)
    assert entries_in(there) == 2


def test_a_different_entry_is_left_alone_and_named(bundle: str, there: Path) -> None:
    install(bundle, there)
    place = there / caches.folder_of(caches.hash_of("add"))
    (place / "add.cubin").write_bytes(b"another compiler's")
    result = install(bundle, there)
    assert result.different == [f"add ({place.name})"]
    assert (place / "add.cubin").read_bytes() == b"another compiler's"


def test_metadata_that_names_another_installation_is_the_same_entry(bundle: str, there: Path) -> None:
    place = add_entry(there, "add")
    assert b"elsewhere" in (place / "add.json").read_bytes()
    assert install(bundle, there).there_before == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "cuda:100"}, "made for cuda:90, this is cuda:100"),
        ({"triton": "3.9.0"}, "made by Triton 3.6.0, this is 3.9.0"),
        ({"triton_key": "other"}, r"made by another build of Triton 3.6.0 \(key key, here other\)"),
        ({"ptxas": "other"}, "made with another ptxas"),
        ({"variables": ()}, "USE_IR_LOC was '1', here 'not set'"),
    ],
)
def test_a_bundle_that_would_never_hit_is_refused_with_what_differs(
    bundle: str, there: Path, monkeypatch: pytest.MonkeyPatch, change: Any, says: str
) -> None:
    monkeypatch.setattr(installing, "environment_for", lambda _: replace(caches.HERE, **change))
    with pytest.raises(BundleError, match=f"{says}: 0 of 2 entries would hit, so nothing was installed"):
        install(bundle, there)
    assert not there.exists()


def test_executables_travel_only_signed(cache: Path, tmp_path: Path, there: Path, keys: tuple[Path, Path]) -> None:
    key, public = keys
    place = str(tmp_path / "signed.tpb")
    assert len(pack(place, cache, key=key).manifest.of("executables")) == 1
    assert show(place)[1] is True
    unchecked = install(place, there)
    assert (unchecked.installed, unchecked.not_installed) == (3, 1)
    assert not list(there.rglob("*.so"))
    checked = install(place, there, key=public)
    assert (checked.installed, checked.not_installed, checked.there_before) == (1, 0, 3)
    assert len(list(there.rglob("*.so"))) == 1


def test_openssl_makes_keys_that_do(cache: Path, tmp_path: Path, there: Path) -> None:
    pytest.importorskip("cryptography")
    from tests.conftest import require_tool

    openssl = require_tool("openssl")
    key, public = tmp_path / "k.pem", tmp_path / "p.pem"
    subprocess.run([openssl, "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    subprocess.run([openssl, "pkey", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    pack(str(tmp_path / "s.tpb"), cache, key=key)
    assert install(str(tmp_path / "s.tpb"), there, key=public).installed == 4


def test_wrong_signatures_are_refused(
    cache: Path, bundle: str, tmp_path: Path, there: Path, keys: tuple[Path, Path]
) -> None:
    key, public = keys
    with pytest.raises(BundleError, match="not signed, and a signature is required"):
        install(bundle, there, key=public)
    pack(str(tmp_path / "signed.tpb"), cache, key=key)
    edited = edit(tmp_path / "signed.tpb", tmp_path, manifest=lambda m: {**m, "machine": "vax"})
    with pytest.raises(BundleError, match=r"is not by the owner of .*pub\.pem, or the manifest was changed"):
        install(edited, there, key=public)
    with pytest.raises(BundleError, match="no public key in PEM"):
        install(bundle, there, key=key)
    with pytest.raises(BundleError, match="No such file"):
        install(bundle, there, key=tmp_path / "none.pem")
    assert not there.exists()


def test_the_limit_on_contents_can_be_set(bundle: str, there: Path) -> None:
    with pytest.raises(BundleError, match=r"and 100 are allowed \(--max-size\)"):
        install(bundle, there, most=100)


def test_urls_of_fsspec_do(cache: Path, there: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pack("memory://bundles/b.tpb", cache)
    assert install("memory://bundles/b.tpb", there).installed == 3
    pack(f"file://{tmp_path}/b.tpb", cache)
    assert show(f"file://{tmp_path}/b.tpb")[0].of("autotune")
    with pytest.raises(BundleError, match="memory://none"):
        show("memory://none")
    with pytest.raises(BundleError, match="nosuch://"):
        pack("nosuch://b", cache)


def test_a_place_that_cannot_be_written_to_is_named(cache: Path, bundle: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        pack(str(tmp_path / "no" / "b.tpb"), cache)
    with pytest.raises(BundleError, match="is no folder"):
        pack(str(tmp_path / "b"), tmp_path / "no")
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="cannot be written to"):
        install(bundle, tmp_path / "file")


def test_a_manifest_comes_back_as_it_went(bundle: str) -> None:
    manifest, signed = show(bundle)
    assert Manifest.parse(manifest.text()) == manifest
    assert (signed, len(manifest.of("entries")), len(manifest.of("autotune"))) == (False, 2, 1)


def test_each_verb_prints_json_alike(bundle: str, cache: Path, there: Path, tmp_path: Path) -> None:
    for words in (
        ("pack", "-o", str(tmp_path / "again.tpb"), "--cache", str(cache)),
        ("show", bundle),
        ("install", bundle, "--target", "cuda:90", "--cache", str(there)),
    ):
        said = CliRunner().invoke(main, ["bundle", *words, "--json"]).stdout
        assert said == json.dumps(json.loads(said), indent=1) + "\n"


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("zstandard", ("bundle", "pack", "-o", "b.tpb")),
        ("fsspec", ("bundle", "show", "memory://b.tpb")),
        ("cryptography", ("bundle", "pack", "-o", "b.tpb", "--sign", "key.pem")),
    ],
)
def test_what_is_not_installed_is_an_extra(
    missing: str, words: tuple[str, ...], cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    Path("key.pem").touch()
    for name in [missing, *(module for module in sys.modules if module.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert missing in done.stderr
    assert "pip install '.[bundle]'" in done.stderr
