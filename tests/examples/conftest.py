"""What the example's tests share: a device without a GPU, with caches of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tritonprobe.testing import compile_only


@pytest.fixture(scope="module")
def compile_only_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Real compiles, launches that do nothing: the ops answer with their references."""
    with pytest.MonkeyPatch.context() as patch, compile_only("cuda:90"):
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        yield
