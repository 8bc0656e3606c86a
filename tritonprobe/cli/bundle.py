"""``tritonprobe bundle``: pack Triton's cache, show what is in a bundle, install one. The work is `prewarming`'s."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tritonprobe.cli.census import load
from tritonprobe.cli.group import BadInput, say, say_json
from tritonprobe.prewarming.manifest import Manifest
from tritonprobe.wording import counted

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of sentences.")
_cache = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Triton's cache folder.  [default: the one that Triton would use now: TRITON_CACHE_DIR, or its own]",
    metavar="DIR",
)


@click.group()
def bundle() -> None:
    """Carry what was compiled to other machines: pack, show, install."""


@bundle.command(short_help="Pack compiled kernels and autotuners' results.")
@click.option("-o", "--output", required=True, metavar="FILE|URL", help="Where the bundle goes; URLs are fsspec's.")
@click.option("--census", type=click.Path(path_type=Path), metavar="FILE", help="Pack it, and only what it needs.")
@click.option("--target", help="Pack entries for this device, e.g. cuda:90.  [default: the only one in the cache]")
@click.option("--sign", type=click.Path(path_type=Path), metavar="KEY", help="Sign with this Ed25519 key (PEM).")
@_cache
@_json
def pack(
    output: str, census: Path | None, target: str | None, sign: Path | None, cache: Path | None, as_json: bool
) -> None:
    """Pack compiled kernels and autotuners' results out of Triton's cache.

    A signed bundle holds launcher stubs too: the CPU runs them, so they are installed only with a checked signature.
    """
    from tritonprobe.prewarming import bundle as bundles

    with _refusing():
        found = bundles.pack(
            output, _folder(cache), census=None if census is None else load(census), target=target, key=sign
        )
    manifest = found.manifest
    if as_json:
        say_json({**_summary(manifest), "bytes": found.size, "missing_kernels": list(found.missing)})
        return
    say(f"{output}: {_contents(manifest)}, {found.size:,} bytes, for {manifest.environment.target}")
    for kernel in found.missing:
        say(f"not in the cache: variants of {kernel}; run tritonprobe prewarm first", err=True)


@bundle.command()
@click.argument("place", metavar="FILE|URL")
@_json
def show(place: str, as_json: bool) -> None:
    """What is in a bundle, and what it was made for."""
    from tritonprobe.prewarming import bundle as bundles

    with _refusing(place):
        manifest, signed = bundles.show(place)
    if as_json:
        say_json({**_summary(manifest), "signed": signed})
        return
    made = manifest.environment
    say(f"{_contents(manifest)}, {manifest.size:,} bytes unpacked, {'signed' if signed else 'not signed'}")
    say(f"made for {made.target} by Triton {made.triton} (key {made.triton_key}), ptxas {made.ptxas}")
    for name, value in made.variables:
        say(f"with {name}={value}")


@bundle.command()
@click.argument("place", metavar="FILE|URL")
@click.option(
    "--target",
    help="This machine's device, where none can be seen (an image build), e.g. cuda:90.  "
    "[default: TRITONPROBE_DEVICE's, or the GPU]",
)
@click.option(
    "--require-signature",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Install only what the owner of this Ed25519 public key (PEM) signed; then executable parts, too.",
)
@click.option("--census", type=click.Path(path_type=Path), metavar="FILE", help="Write the bundle's census to FILE.")
@click.option(
    "--max-size", type=click.IntRange(min=1), default=4096, show_default=True, metavar="MIB", help="Of its contents."
)
@_cache
@_json
def install(
    place: str,
    target: str | None,
    key: Path | None,
    census: Path | None,
    max_size: int,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Install a bundle into Triton's cache folder. Nothing that is there is overwritten.

    Exit code 2, and nothing changed, if the bundle is damaged, unsigned where a signature is required, or made for
    another Triton or device. Exit code 1 if a folder of its name holds something else; the rest is installed.
    """
    from tritonprobe.prewarming.install import install as put

    with _refusing(place):
        found = put(place, _folder(cache), target=target or _device(), key=key, census=census, most=max_size << 20)
    if as_json:
        say_json(
            {
                "installed": found.installed,
                "completed": found.completed,
                "there_before": found.there_before,
                "different": found.different,
                "executables_left_out": found.not_installed,
            }
        )
    else:
        folders = counted(found.installed, "folder")
        say(f"{folders} installed, {found.completed:,} completed, {found.there_before:,} there before")
        if found.not_installed:
            say(f"{counted(found.not_installed, 'executable file')} left out: nobody checked a signature")
        for name in found.different:
            say(f"left as it is, and different: {name}", err=True)
    raise click.exceptions.Exit(1 if found.different else 0)


@contextmanager
def _refusing(place: str = "") -> Iterator[None]:
    from tritonprobe.prewarming.manifest import BundleError
    from tritonprobe.settings import SettingError
    from tritonprobe.shapes.census import CensusError

    try:
        yield
    except SettingError as error:  # of no bundle's
        raise BadInput(str(error)) from None
    except (BundleError, CensusError) as error:
        text = str(error)
        raise BadInput(text if not place or text.startswith(place) else f"{place}: {text}") from None
    except OSError as error:  # a folder in the cache that cannot be read
        raise BadInput(f"{error.filename}: {error.strerror}") from None


def _device() -> str | None:
    """The settings' device, which every process here launches on; None: the GPU. Raises SettingError."""
    from tritonprobe.adapter.device import parse_device
    from tritonprobe.runtime import current

    device = current().settings.device
    return None if device is None else f"cuda:{parse_device(device)}"


def _folder(named: Path | None) -> Path:
    from tritonprobe.adapter.diskkey import cache_folder

    found = cache_folder() if named is None else named
    if found is None:
        raise BadInput("Triton has no cache folder here: name one with --cache")
    return found.absolute()


def _contents(manifest: Manifest) -> str:
    parts = [counted(len(manifest.of("entries")), "binary"), counted(len(manifest.of("autotune")), "autotune result")]
    parts += [counted(len(manifest.of("executables")), "executable")] if manifest.of("executables") else []
    return ", ".join([*parts, "a census" if manifest.census is not None else "no census"])


def _summary(manifest: Manifest) -> dict[str, object]:
    from tritonprobe.shapes.census_json import environment_to

    return {
        "entries": len(manifest.of("entries")),
        "autotune": len(manifest.of("autotune")),
        "executables": len(manifest.of("executables")),
        "unpacked_bytes": manifest.size,
        "census": manifest.census is not None,
        "environment": environment_to(manifest.environment),
    }
