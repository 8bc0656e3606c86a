"""A small cache as Triton lays it out, a bundle of it, a place to install it to, and keys to sign it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prewarming import caches
from tests.prewarming.caches import add_entry, add_result, add_stub, census_of
from tritonprobe.prewarming import bundle as bundles
from tritonprobe.prewarming import install as installing
from tritonprobe.prewarming.bundle import pack


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of what asks Triton for its device."""
    monkeypatch.setattr(bundles, "environment_for", caches.environment_for)
    monkeypatch.setattr(installing, "environment_for", caches.environment_for)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with two kernels, a tuning result and a launcher stub."""
    folder = tmp_path / "cache"
    for kernel in ("add", "mul"):
        add_entry(folder, kernel)
    add_result(folder, "mul")
    add_stub(folder, "__triton_launcher")
    (folder / "tmp.pid_1_x").mkdir()
    (folder / ".tritonprobe").mkdir()
    return folder


@pytest.fixture
def bundle(cache: Path, tmp_path: Path) -> str:
    place = str(tmp_path / "b.tpb")
    pack(place, cache, census=census_of("add", "mul"))
    return place


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "cache"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    key, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    pem = serialization.Encoding.PEM
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return key, public
