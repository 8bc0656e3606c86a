"""``tritonprobe run -- vllm serve``, the real one, with workers that compute nothing (see `hollow`): ranks, ready, off.

Skipped where vLLM is not; takes half a minute for each number of ranks.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tritonprobe.ledger import DirectoryReader, HistogramSample, Sample

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = pytest.mark.slow

HOLLOW = Path(__file__).with_name("hollow")
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass
class Served:
    process: subprocess.Popen[bytes]
    ledger: Path
    cache: Path
    log: Path
    port: int
    ranks: int

    def complete(self, length: int, tokens: int = 4, **headers: str) -> dict[str, Any]:
        body = {"model": "hollow", "prompt": [5] * length, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Content-Type": "application/json", **headers}
        connection.request("POST", "/v1/completions", json.dumps(body), sent)
        response = connection.getresponse()
        assert response.status == 200
        answer: dict[str, Any] = json.loads(response.read())
        time.sleep(0.2)  # what the engine's last step counts is counted when it ends
        return answer

    def read(self, name: str) -> dict[tuple[str, ...], float]:
        """A metric's series; of a histogram the sums."""
        for family in DirectoryReader(self.ledger).collect():
            if family.metric.name == name:
                return {s.labels: s.sum if isinstance(s, HistogramSample) else s.value for s in family.samples}
        return {}

    def traces(self) -> set[str]:
        """Of the exemplars of times to a first token: the latest of each process."""
        for family in DirectoryReader(self.ledger).collect():
            if family.metric.name == "time_to_first_token_seconds":
                traced = [s.traced for s in family.samples if isinstance(s, HistogramSample)]
                return {each.exemplar.trace_id for each in traced if each is not None}
        return set()

    def requests(self) -> int:
        for family in DirectoryReader(self.ledger).collect():
            if family.metric.name == "time_to_first_token_seconds":
                return int(sum(sum(s.counts) for s in family.samples if not isinstance(s, Sample)))
        return 0

    def said(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "tritonprobe: " in line]


def write_model(folder: Path) -> Path:
    folder.mkdir()
    vocabulary = {f"t{i}": i for i in range(1000)}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }  # fmt: skip
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "model_max_length": 2048}
    for name, content in {"config": MODEL, "tokenizer": tokenizer, "tokenizer_config": about}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, ranks = tmp_path_factory.mktemp("vllm"), request.param
    port = 18_200 + ranks
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HOLLOW), os.environ.get("PYTHONPATH", ""))),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        *(sys.executable, "-m", "tritonprobe", "run", "--port", "0", "--dir", str(folder / "ledger"), "--"),
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(write_model(folder / "model"))),
        *("--served-model-name", "hollow", "--load-format", "dummy", "--enforce-eager", "--max-model-len", "2048"),
        *("--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(port), "-tp", str(ranks)),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    found = Served(process, folder / "ledger", folder / "cache", folder / "log", port, ranks)
    try:
        deadline = time.monotonic() + 120
        while not healthy(port):
            assert process.poll() is None, found.log.read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield found
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def test_every_process_says_what_was_attached_and_ready_is_said_once(served: Served) -> None:
    said = "\n".join(served.said())
    for rank in range(served.ranks):
        assert f"worker of rank {rank}: kernels and cold calls, and " in said
    assert re.search(
        r"vLLM 0\.21\.\d+, engine core: kernels and cold calls, and arrivals, core, .*ranks, .*steps", said
    )
    assert re.search(
        r"vLLM 0\.21\.\d+, API server: kernels and cold calls, and arrivals, core, health, ranks, .*traces", said
    )
    assert said.count("ready, for vLLM's warm-up has ended; ") == said.count("ready, for ") == 1
    assert f"{served.ranks} compile" in said or "disk hit" in said
    (at,) = served.read("ready_timestamp_seconds").values()
    assert time.time() - 300 < at < time.time()
    assert sum(served.read("errors_total").values()) == 0


def test_a_new_length_is_an_incident_and_the_request_that_waited_is_charged(served: Served) -> None:
    served.complete(3)  # whatever the first one brings
    before, cubins = served.read("cold_calls_after_ready_total"), len(list(served.cache.rglob("*.cubin")))
    exposed, requests = served.read("request_exposure_seconds"), served.requests()
    cold = served.read("cold_seconds_total")
    begin = time.monotonic()
    served.complete(300)
    took = time.monotonic() - begin
    after = served.read("cold_calls_after_ready_total")
    compiled = after["compile",] - before["compile",]
    assert compiled + after["disk",] - before["disk",] == served.ranks  # whoever is later may find it on disk
    assert 1 <= len(list(served.cache.rglob("*.cubin"))) - cubins <= compiled
    assert served.requests() == requests + 1
    now = served.read("request_exposure_seconds")
    grown = {key: now[key] - exposed[key] for key in now}
    stall = grown["before_first_token", "in_batch"]
    # One clock for the stall of one request, another for what its ranks spent in cold calls, a third for the client.
    spent = served.read("cold_seconds_total")
    by_rank = {
        rank: sum(v - cold.get(key, 0.0) for key, v in spent.items() if key[2] == rank)
        for rank in {key[2] for key in spent}
    }
    assert sorted(by_rank) == [str(rank) for rank in range(served.ranks)]
    assert max(by_rank.values()) - 0.005 <= stall <= min(sum(by_rank.values()) + 0.005, took)
    assert grown["before_first_token", "queued"] == pytest.approx(0, abs=0.005)
    served.complete(300)
    assert served.read("cold_calls_after_ready_total") == after


def test_a_clients_trace_reaches_the_engine_core(served: Served) -> None:
    trace = f"{0xC0FFEE + served.ranks:032x}"
    assert served.traces() == set()
    served.complete(5, traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    assert trace in served.traces()
    served.complete(5, traceparent=f"00-{1:032x}-00f067aa0ba902b7-00")  # not sampled
    assert served.traces() == {trace}


def test_off_takes_every_process_along_and_on_brings_it_back(served: Served) -> None:
    def switch(state: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "tritonprobe", state, "--json", str(served.ledger)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        found: list[dict[str, Any]] = json.loads(done.stdout)["processes"]
        return found

    served.complete(5)
    followed = switch("off")
    assert len(followed) == 2 + (served.ranks if served.ranks > 1 else 0)
    assert all(each["followed"] and not each["left"] for each in followed)
    launches, requests = served.read("launches_total"), served.requests()
    text = served.complete(5)["choices"][0]["text"]
    served.complete(700)
    assert (served.read("launches_total"), served.requests()) == (launches, requests)
    assert all(each["followed"] for each in switch("on"))
    assert served.complete(5)["choices"][0]["text"] == text
    assert sum(served.read("launches_total").values()) > sum(launches.values())
    assert served.requests() == requests + 1


def test_its_end_is_vllms_own_and_summed_up(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) in (0, 143)
    assert re.search(r"launches, .* cold calls .*; \d+ of them after ready", served.said()[-1])
