"""Bundles that were tampered with or damaged: each is named, and changes nothing."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("zstandard")

from tests.damage import damaged
from tests.prewarming import caches
from tests.prewarming.caches import add_entry, everything_in
from tests.prewarming.tampering import edit, members_of, with_group, with_member
from tritonprobe.prewarming import archive
from tritonprobe.prewarming.bundle import pack, show
from tritonprobe.prewarming.install import install
from tritonprobe.prewarming.manifest import BundleError

pytestmark = pytest.mark.usefixtures("environment")
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Every example gets the same bundle, and an empty place."""


def file_of(manifest: dict[str, Any], **change: Any) -> dict[str, Any]:
    manifest["folders"][0]["files"][0].update(change)
    return manifest


def renamed(name: str) -> Callable[[Any], Any]:
    def members(found: list[tuple[tarfile.TarInfo, bytes]]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        for i, (member, data) in enumerate(found):
            if i == 1:
                member.name = name
            yield member, data

    return lambda found: list(members(found))


def typed(kind: bytes) -> Callable[[Any], Any]:
    def members(found: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
        found[1][0].type, found[1][0].linkname, found[1][0].size = kind, "/etc/passwd", 0
        return found

    return members


def extra(found: Any) -> Any:
    member = tarfile.TarInfo("entries/extra")
    return [*found, (member, b"")]


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "edited member",
        {"members": lambda m: [(m[0][0], m[0][1]), (m[1][0], bytes(len(m[1][1]))), *m[2:]]},
        "digest differs",
    ),
    ("wrong digest", {"manifest": lambda m: file_of(m, sha256="0" * 64)}, "its digest differs"),
    ("wrong size", {"manifest": lambda m: file_of(m, size=5)}, "bytes, and 5 by the manifest"),
    ("10 GB by manifest", {"manifest": lambda m: file_of(m, size=10 << 30)}, "are allowed"),
    ("missing member", {"members": lambda m: m[:-1]}, "ends before .*: it is truncated"),
    ("missing members", {"members": lambda m: []}, "ends before census.json: it is truncated"),
    ("extra member", {"members": extra}, "'entries/extra' is not in the manifest"),
    ("path in member", {"members": renamed("../../evil")}, "'../../evil' is not "),
    ("absolute member", {"members": renamed("/etc/evil")}, "evil' is not "),
    ("symbolic link", {"members": typed(tarfile.SYMTYPE)}, "is a link or a special file"),
    ("hard link", {"members": typed(tarfile.LNKTYPE)}, "is a link or a special file"),
    ("device", {"members": typed(tarfile.CHRTYPE)}, "is a link or a special file"),
    ("path in manifest", {"manifest": lambda m: file_of(m, name="../evil")}, "'../evil' is not a file's name"),
    ("absolute in manifest", {"manifest": lambda m: file_of(m, name="/evil")}, "'/evil' is not a file's name"),
    ("hidden in manifest", {"manifest": lambda m: file_of(m, name=".bashrc")}, "'.bashrc' is not a file's name"),
    ("executable among entries", {"manifest": lambda m: file_of(m, name="a.so")}, "a.so is executable, and not among"),
    (
        "other version",
        {"manifest": lambda m: {**m, "version": 2}},
        "bundle version 2: this tritonprobe reads version 1",
    ),
    ("other format", {"manifest": lambda m: {**m, "format": "zip"}}, '"format" is not "tritonprobe bundle"'),
    ("no folders", {"manifest": lambda m: {**m, "folders": 5}}, "folders: expected a list"),
    (
        "bad folder",
        {"manifest": lambda m: {**m, "folders": [{**m["folders"][0], "name": ".."}]}},
        "is no folder of Triton's",
    ),
    ("twice", {"manifest": lambda m: {**m, "folders": [m["folders"][0]] * 2}}, "a folder is there twice"),
    ("no environment", {"manifest": lambda m: {**m, "environment": {}}}, "environment: expected"),
]


@pytest.mark.parametrize(("change", "says"), [(c, s) for _, c, s in BAD], ids=[name for name, _, _ in BAD])
def test_bad_bundles_are_named_and_change_nothing(
    bundle: str, tmp_path: Path, there: Path, change: Any, says: str
) -> None:
    add_entry(there, "mine")
    before = everything_in(there)
    with pytest.raises(BundleError, match=says):
        install(edit(bundle, tmp_path, **change), there)
    assert everything_in(there) == before


def test_truncated_bundles_are_named_and_change_nothing(bundle: str, tmp_path: Path, there: Path) -> None:
    whole = Path(bundle).read_bytes()
    cut = tmp_path / "cut.tpb"
    for size in [*range(0, len(whole) - 16, 97), *range(len(whole) - 16, len(whole))]:
        cut.write_bytes(whole[:size])
        with pytest.raises(BundleError) as refused:
            install(str(cut), there)
        assert "empty" not in str(refused.value), f"{size} bytes are not nothing"
    assert not there.exists()


def test_what_follows_a_bundle_is_no_part_of_it(bundle: str, tmp_path: Path, there: Path) -> None:
    whole, longer = Path(bundle).read_bytes(), tmp_path / "longer.tpb"
    packed = archive.zstandard().ZstdCompressor().compress
    for behind in (
        b"x",
        bytes(100),
        whole,
        packed(b"x"),
        packed(b"a" * tarfile.RECORDSIZE),
        packed(bytes(tarfile.RECORDSIZE)),
    ):
        longer.write_bytes(whole + behind)
        with pytest.raises(BundleError, match=r"something follows|a damaged one"):
            install(str(longer), there)
    assert not there.exists()


def test_what_hides_behind_the_last_member_is_found(bundle: str, tmp_path: Path, there: Path) -> None:
    with Path(bundle).open("rb") as file, archive.zstandard().ZstdDecompressor().stream_reader(file) as raw:
        plain = bytearray(raw.read())
    plain[-1] = 1
    hiding = tmp_path / "hiding.tpb"
    hiding.write_bytes(archive.zstandard().ZstdCompressor().compress(plain))
    with pytest.raises(BundleError, match="something follows the bundle's last member"):
        install(str(hiding), there)
    assert not there.exists()


def test_a_group_that_leads_elsewhere_is_refused(bundle: str, tmp_path: Path, there: Path, cache: Path) -> None:
    place = cache / caches.folder_of(caches.hash_of("add"))
    (place / "__grp__add.json").write_text(json.dumps({"child_paths": {"x": str(place / "add.cubin")}}))
    pack(str(tmp_path / "odd.tpb"), cache)
    install(str(tmp_path / "odd.tpb"), there)  # a name of its own is fine
    evil = with_group(bundle, tmp_path, "add", json.dumps({"child_paths": {"x": "/etc/passwd"}}).encode())
    with pytest.raises(BundleError, match="names a file that is not in its folder"):
        install(evil, tmp_path / "third")
    assert not (tmp_path / "third").exists()


@given(st.data())
@REUSED
def test_any_value_in_any_place_of_a_document_is_taken_or_refused(
    bundle: str, tmp_path: Path, data: st.DataObject
) -> None:
    (_, manifest), (_, census), *_ = members_of(bundle)
    documents = {
        "manifest.json": json.loads(manifest),
        "census.json": json.loads(census),
        "__grp__add.json": {"child_paths": {"add.cubin": "add.cubin", "add.json": "add.json"}},
    }
    name = data.draw(st.sampled_from(sorted(documents)))
    changed = data.draw(damaged(documents[name]))
    if name == "manifest.json":
        refused(edit(bundle, tmp_path, manifest=lambda _: changed), tmp_path / "there")
    else:
        refused(with_member(bundle, tmp_path, name, json.dumps(changed).encode()), tmp_path / "there")


@given(st.data())
@REUSED
def test_any_byte_may_be_another(bundle: str, tmp_path: Path, data: st.DataObject) -> None:
    changed = tmp_path / "changed.tpb"
    library = archive.zstandard()
    with Path(bundle).open("rb") as file, library.ZstdDecompressor().stream_reader(file) as raw:
        unpacked = bytearray(raw.read())
    at = data.draw(st.integers(0, 511) | st.integers(0, len(unpacked) - 1), "place")  # headers come first
    unpacked[at] = data.draw(st.integers(0, 255), "byte")
    changed.write_bytes(library.ZstdCompressor().compress(bytes(unpacked)))
    refused(str(changed), tmp_path / "there")


def refused(place: str, there: Path) -> None:
    """Shown and installed into an empty place, or refused with one kind of error and nothing changed."""
    shutil.rmtree(there, ignore_errors=True)
    with contextlib.suppress(BundleError):
        show(place)
    said = None
    try:
        install(place, there)
    except BundleError as error:
        said = str(error)
    assert said is None or (len(said) < 9000 and not there.exists())


def test_headers_in_headers_end_nobody(tmp_path: Path, there: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    one = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    place = tmp_path / "headers.tpb"
    place.write_bytes(archive.zstandard().ZstdCompressor().compress(one * 2000))
    with pytest.raises(BundleError, match="no bundle"):
        install(str(place), there)


def test_damaged_metadata_in_a_cache_is_not_taken_for_a_device(cache: Path, tmp_path: Path) -> None:
    for place in cache.glob("*/add.json"):
        place.write_text("[" * 100_000)
    assert len(pack(str(tmp_path / "b.tpb"), cache).manifest.of("entries")) == 2
    for place in cache.glob("*/__grp__add.json"):
        place.write_text("[" * 100_000)
    assert [f.kernel for f in pack(str(tmp_path / "b.tpb"), cache).manifest.of("entries")] == ["mul"]


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, there: Path) -> None:
    header = tarfile.TarInfo("manifest.json")
    header.size = 10 << 30
    head = header.tobuf(tarfile.GNU_FORMAT)
    bomb = tmp_path / "bomb.tpb"
    bomb.write_bytes(archive.zstandard().ZstdCompressor().compress(head + bytes(1 << 20)))
    with pytest.raises(BundleError, match="no file of up to"):
        install(str(bomb), there)
    pax = tarfile.TarInfo("x")
    pax.type, pax.size = tarfile.XHDTYPE, 1 << 33
    bomb.write_bytes(archive.zstandard().ZstdCompressor().compress(pax.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 24)))
    with pytest.raises(BundleError, match="header is larger than any"):
        install(str(bomb), there)
    bomb.write_bytes(b"not even that")
    with pytest.raises(BundleError, match="no bundle"):
        install(str(bomb), there)
