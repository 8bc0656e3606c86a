"""Signatures of manifests: Ed25519 by the library `cryptography`, keys as PEM files. Knows bytes only.

openssl genpkey -algorithm ed25519 -out key.pem
openssl pkey -in key.pem -pubout -out pub.pem
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonprobe.prewarming.manifest import EXTRA, BundleError


def sign(data: bytes, key: Path) -> bytes:
    """Raises BundleError if there is no such key."""
    serialization, ed25519, _, unsupported = _library()
    try:
        private = serialization.load_pem_private_key(_read(key), password=None)
    except (ValueError, TypeError, unsupported) as error:
        raise BundleError(f"{key}: no private key in PEM without a password ({error})") from None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise BundleError(f"{key}: not an Ed25519 key; make one with: openssl genpkey -algorithm ed25519")
    return bytes(private.sign(data))


def verify(data: bytes, signature: bytes | None, key: Path) -> None:
    """Raises BundleError unless `signature` is that of `data` by the owner of the public `key`."""
    serialization, ed25519, invalid, unsupported = _library()
    try:
        public = serialization.load_pem_public_key(_read(key))
    except (ValueError, TypeError, unsupported) as error:
        raise BundleError(f"{key}: no public key in PEM ({error})") from None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise BundleError(f"{key}: not an Ed25519 key")
    if signature is None:
        raise BundleError("the bundle is not signed, and a signature is required")
    try:
        public.verify(signature, data)
    except invalid:
        raise BundleError(f"the signature is not by the owner of {key}, or the manifest was changed") from None


def _library() -> tuple[Any, Any, type[Exception], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise BundleError(f"signatures need cryptography: {EXTRA}") from None
    return serialization, ed25519, InvalidSignature, UnsupportedAlgorithm


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
