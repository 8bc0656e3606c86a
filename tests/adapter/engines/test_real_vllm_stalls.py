"""The show of planted stalls (`tests.gpu.vllm_stalls`) on the real vLLM with workers that compute nothing.

Who is charged, and how much, is held to here; how long clients wait is the GPU's to say, whose steps take their time.
Skipped where vLLM is not; takes a minute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from tests.adapter.engines.test_real_vllm_server import HOLLOW, write_model
from tests.gpu import vllm_stalls
from tests.gpu.vllm_engine import MODEL, Server, total

pytestmark = pytest.mark.slow


class Hollow(Server):
    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "tritonprobe", "run", "--port", "0", "--dir", str(self.ledger), "--"),
            *(*self.engine, "serve", str(self.folder / "model"), "--served-model-name", MODEL),
            *("--load-format", "dummy", "--enforce-eager", "--max-model-len", "2048", "--no-enable-prefix-caching"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]

    def environment(self) -> dict[str, str]:
        planted = vllm_stalls.environment(self.folder)
        path = os.pathsep.join((str(HOLLOW), planted["PYTHONPATH"]))
        return {**super().environment(), **planted, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stalls")
    engine = (sys.executable, "-m", "vllm.entrypoints.cli.main")
    made = Hollow(folder, folder, "eager", 18_231, True, engine, "stalls")
    write_model(folder / "model")
    with made:
        yield made


@pytest.fixture(scope="module")
def found(server: Server) -> dict[str, Any]:
    return vllm_stalls.stalls(server)


def test_exactly_the_batch_and_the_queue_are_charged_with_the_overlap(found: dict[str, Any]) -> None:
    assert len(found["stalls"]) == 4
    for name, each in found["stalls"].items():
        least = vllm_stalls.COMPILE_SECONDS if "compile" in name else vllm_stalls.SLEEP_SECONDS
        assert min(each["stall_s"]) >= least
        assert each["wrongly_charged"] == []
        assert max(map(abs, each["exposure_less_overlap_ms"])) <= 20  # two busy cores: a thread waits for its turn
        assert each["queued"] == (["l0", "l1"] if "late" in name else ["r6", "r7"])
        assert each["not_touched"] == ["r0"]


def test_the_plugin_leaves_no_trace(server: Server, found: dict[str, Any]) -> None:
    def logged() -> int:
        return sum(path.stat().st_size for path in (server.folder / "plant").glob("log-*"))

    before = logged()
    assert found["stalls"]
    assert before > 0
    assert server.complete([[5, 6, 7]], 4).status == 200
    assert logged() == before
    assert total(server.read(), "errors_total") == 0
