"""The adapter on vLLM's real classes: its scheduler, its engine core's loop, its monitor. Skipped where vLLM is not.

The executor is a stand-in, for there is no GPU: it answers each step with a token a request, after whatever stall a
test plants. What decides, counts and overlaps is vLLM's own.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.triton_utils import jit_monitor
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.worker_base import WorkerWrapperBase

import tritonprobe
from tests.adapter.conftest import total_of
from tritonprobe import runtime as runtime_module
from tritonprobe.ledger import DirectoryReader
from tritonprobe.runtime import Runtime
from tritonprobe.settings import Settings
from tritonprobe.testing import compile_only

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def watched(runtime: Runtime) -> Runtime:
    tritonprobe.instrument()
    assert not vllm_of(runtime).missing
    return runtime


def vllm_of(runtime: Runtime) -> Any:
    return runtime.engines._attachments[0]


@pytest.fixture
def config(tmp_path: Path) -> VllmConfig:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    model = ModelConfig(model=str(tmp_path / "model"), skip_tokenizer_init=True, served_model_name="tiny")
    scheduling = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=512,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=16, gpu_memory_utilization=0.9, enable_prefix_caching=False)
    cache.num_gpu_blocks = 200
    return VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=cache, device_config=DeviceConfig("cpu")
    )


def scheduler(config: VllmConfig, kind: type[Scheduler] = Scheduler) -> Scheduler:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=200, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=True,
    )


def asking(name: str, prompt: int = 8, tokens: int = 3) -> Request:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    params.update_from_generation_config({}, 2)
    return Request(
        request_id=name, prompt_token_ids=list(range(3, 3 + prompt)), sampling_params=params, pooling_params=None
    )


def sent(name: str, trace_headers: dict[str, str] | None = None) -> EngineCoreRequest:
    """As the API server sends it."""
    like = asking(name)
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=like.prompt_token_ids,
        mm_features=None,
        sampling_params=like.sampling_params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        trace_headers=trace_headers,
    )


def answer(output: Any) -> ModelRunnerOutput:
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class Executor:
    """Runs nothing; plants a stall in the steps that a test names, and keeps what was scheduled."""

    def __init__(self, stalls: dict[int, float] | None = None) -> None:
        self.scheduled: list[dict[str, int]] = []
        self.stalls = stalls or {}
        self.max_concurrent_batches = 2

    def execute_model(self, output: Any, non_block: bool = False) -> Any:
        self.scheduled.append(dict(output.num_scheduled_tokens))
        stall = self.stalls.get(len(self.scheduled))
        if stall:
            with tritonprobe.cold_call("planted", kind="jit"):
                time.sleep(stall)
        self._answer = answer(output)
        return _done(None if output.total_num_scheduled_tokens else self._answer)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        return _done(self._answer) if non_block else self._answer


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def core(config: VllmConfig, executor: Executor, *, queued: bool = False) -> EngineCore:
    """vLLM's engine core, with its own scheduler and step functions, and nothing that needs a GPU."""
    made = EngineCore.__new__(EngineCore)
    made.vllm_config = config
    made.scheduler = scheduler(config, AsyncScheduler if queued else Scheduler)
    made.model_executor = executor
    made.aborts_queue = queue.Queue()
    made.use_spec_decode = made.is_pooling_model = False
    made.is_ec_consumer = True
    made.batch_queue_size = 2
    made.batch_queue = deque(maxlen=2) if queued else None
    made.step_fn = made.step_with_batch_queue if queued else made.step
    return made


def run(engine: EngineCore, steps: int = 100) -> None:
    for _ in range(steps):
        if not engine.scheduler.has_requests() and not engine.batch_queue:
            return
        engine.step_fn()
    raise AssertionError("the engine has not come to an end")


@pytest.mark.parametrize("queued", [False, True], ids=["step", "batch queue, asynchronous"])
def test_every_request_of_the_engine_is_one_of_ours_with_its_tokens(watched, config, queued) -> None:
    config.scheduler_config.async_scheduling = queued
    executor = Executor()
    engine = core(config, executor, queued=queued)
    for i in range(5):
        engine.add_request(asking(f"r{i}", tokens=2 + i))
    run(engine)
    assert {cost.id: cost.tokens for cost in watched.requests} == {f"r{i}": 2 + i for i in range(5)}
    assert {cost.model for cost in watched.requests} == {"tiny"}
    assert all(cost.error is None and cost.ttft_ns is not None for cost in watched.requests)
    assert not vllm_steps(watched)._retired
    assert not vllm_steps(watched)._requests
    assert total_of(watched, "errors_total") == 0


def vllm_steps(runtime: Runtime) -> Any:
    return vllm_of(runtime)._removed.__self__


def test_a_stall_in_a_step_is_charged_to_the_requests_of_that_step_and_to_no_other(watched, config) -> None:
    engine = core(config, Executor(stalls={2: 0.05}))
    engine.add_request(asking("early", tokens=4))
    engine.step_fn()
    engine.add_request(asking("late", tokens=1))
    engine.step_fn()  # the planted one: both are in it
    engine.add_request(asking("after", tokens=1))
    run(engine)
    (stall,) = [call for call in watched.cold_calls if call.kernel == "planted"]
    exposed = {cost.id: cost.before.in_batch_ns + cost.after.in_batch_ns for cost in watched.requests}
    assert exposed["early"] == exposed["late"] == stall.wall_ns
    assert exposed["after"] == 0
    assert {cost.id: cost.before.queued_ns for cost in watched.requests}["after"] == 0


def test_a_request_that_comes_while_a_step_stalls_has_waited_since_then(watched, config) -> None:
    """vLLM's input thread has it; the loop takes it in after the step."""

    class Busy(Executor):
        def execute_model(self, output: Any, non_block: bool = False) -> Any:
            if len(self.scheduled) == 1:
                with tritonprobe.cold_call("planted", kind="jit"):
                    time.sleep(0.02)
                    self.came = time.monotonic_ns()
                    self.late = engine.preprocess_add_request(sent("late"))[0]
                    time.sleep(0.03)
            return super().execute_model(output, non_block)

    engine = core(config, executor := Busy())
    engine.request_block_hasher = engine.mm_receiver_cache = None
    engine.add_request(asking("early", tokens=4))
    engine.step_fn()
    engine.step_fn()
    engine.add_request(executor.late)
    run(engine)
    (stall,) = [call for call in watched.cold_calls if call.kernel == "planted"]
    late = {cost.id: cost for cost in watched.requests}["late"]
    assert late.before.queued_ns == pytest.approx(stall.end_ns - executor.came, abs=5e6)
    assert late.before.queued_ns == stall.end_ns - late.start_ns
    assert late.before.in_batch_ns == late.after.in_batch_ns == 0
    assert not vllm_steps(watched)._arrived
    assert total_of(watched, "errors_total") == 0


CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_request_is_in_the_trace_that_came_with_it(watched, config) -> None:
    engine = core(config, Executor())
    engine.request_block_hasher = engine.mm_receiver_cache = None
    headers = {"traced": {"traceparent": CALLER}, "other": {"tracestate": "a=b"}, "plain": None}
    for name, sent_headers in headers.items():
        engine.add_request(engine.preprocess_add_request(sent(name, sent_headers))[0])
    straight = asking("straight")  # as an engine does that has no such thread
    straight.trace_headers = {"traceparent": CALLER}
    engine.add_request(straight)
    run(engine)
    found = {cost.id: cost.trace for cost in watched.requests}
    caller = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert found == {"traced": caller, "straight": caller, "other": None, "plain": None}


@pytest.mark.parametrize("tracing", [False, True])
def test_a_clients_traceparent_travels_with_its_request_whether_vllm_traces_or_not(watched, tracing) -> None:
    from starlette.datastructures import Headers
    from vllm.entrypoints.openai.engine.serving import OpenAIServing

    async def is_tracing_enabled() -> bool:
        return tracing

    serving = SimpleNamespace(engine_client=SimpleNamespace(is_tracing_enabled=is_tracing_enabled))

    def taken(**headers: str) -> Any:
        return asyncio.run(OpenAIServing._get_trace_headers(serving, Headers(headers)))

    assert taken(Traceparent=CALLER) == {"traceparent": CALLER}
    assert taken(traceparent="x" * 9999) == {"traceparent": "x" * (9999 if tracing else 256)}
    assert not taken(authorization="secret")
    tritonprobe.uninstrument()
    assert taken(traceparent=CALLER) == ({"traceparent": CALLER} if tracing else None)


def test_a_request_that_vllm_refuses_or_that_we_leave_behind_is_no_fault(watched, config) -> None:
    engine = core(config, Executor())
    engine.request_block_hasher = engine.mm_receiver_cache = None
    with pytest.raises(AttributeError):
        engine.preprocess_add_request(SimpleNamespace(request_id="refused", mm_features=None))
    assert not vllm_steps(watched)._arrived
    assert not watched.live._live
    made, _ = engine.preprocess_add_request(sent("left"))
    tritonprobe.uninstrument()
    engine.add_request(made)
    run(engine)
    assert [(cost.id, cost.error) for cost in watched.requests] == [("left", "unwatched")]
    assert total_of(watched, "errors_total") == 0


def test_an_aborted_request_ends_with_its_reason(watched, config) -> None:
    engine = core(config, Executor())
    engine.add_request(asking("r", tokens=50))
    engine.step_fn()
    engine.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
    (cost,) = watched.requests
    assert (cost.id, cost.error, cost.tokens) == ("r", "aborted", 1)


def test_the_end_of_the_warm_up_is_ready_and_the_monitor_works_on(watched, monkeypatch) -> None:
    monkeypatch.setattr(jit_monitor, "_active", False)
    before = time.time_ns()
    jit_monitor.activate()
    assert jit_monitor.is_active()
    assert watched.ready_unix_ns is not None
    assert before <= watched.ready_unix_ns <= time.time_ns()


def test_without_a_monitor_the_first_healthy_answer_is_ready(watched) -> None:
    sick = SimpleNamespace(errored=True, dead_error=RuntimeError("dead"))
    with pytest.raises(RuntimeError, match="dead"):
        asyncio.run(AsyncLLM.check_health(sick))
    assert watched.ready_unix_ns is None
    asyncio.run(AsyncLLM.check_health(SimpleNamespace(errored=False)))
    assert watched.ready_unix_ns is not None


def test_a_workers_rank_labels_its_cold_calls(watched, config) -> None:
    worker = WorkerWrapperBase(rpc_rank=1)
    parallel = SimpleNamespace(data_parallel_rank=2, world_size=4)
    given = {"vllm_config": SimpleNamespace(parallel_config=parallel, instance_id="i"), "rank": 3}
    with pytest.raises(AttributeError):  # a SimpleNamespace is no configuration: vLLM goes no further
        worker.init_worker([{}, given])
    with tritonprobe.cold_call("x", kind="jit"):
        pass
    ranks = {labels[2] for labels in _series(watched, "cold_seconds_total") if labels[0] == "x"}
    assert ranks == {"11"}


WORKER = """
import multiprocessing.connection, os, sys, time
from types import SimpleNamespace
import tritonprobe
from vllm.v1.worker.worker_base import WorkerWrapperBase
tritonprobe.instrument()
core = multiprocessing.connection.Connection(int(sys.argv[1]))

class Worker:
    def execute_model(self, output):
        if len(output.num_scheduled_tokens) == 2:
            with tritonprobe.cold_call("planted", kind="jit"):
                time.sleep(0.2)

parallel = SimpleNamespace(data_parallel_rank=0, world_size=2)
config = SimpleNamespace(parallel_config=parallel, instance_id="shared")
wrapper = WorkerWrapperBase(rpc_rank=0)
try:
    wrapper.init_worker([{"vllm_config": config, "rank": 1}])
except AttributeError:
    pass  # of this configuration vLLM needs more; the rest of the worker is ours
wrapper.worker, wrapper.mm_receiver_cache = Worker(), None
core.send("up")
while (output := core.recv()) is not None:
    core.send(wrapper.execute_model(output))
"""


def test_a_stall_in_a_worker_process_is_charged_to_its_step_in_the_engine_core(tmp_path, config, monkeypatch) -> None:
    """Two processes, vLLM's own scheduler output pickled between them, a worker of rank 1 that stalls."""
    directory = tmp_path / "ledger"
    monkeypatch.setattr(runtime_module, "_current", found := Runtime(Settings(dir=str(directory))))
    ours, theirs = multiprocessing.Pipe()
    env = {**os.environ, "TRITONPROBE_DIR": str(directory)}
    command = [sys.executable, "-c", WORKER, str(theirs.fileno())]
    with subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            tritonprobe.instrument()
            assert ours.recv() == "up"
            config.instance_id = "shared"
            found.join("vllm-shared-0")  # as the end of EngineCore.__init__ does

            class Remote(Executor):
                def execute_model(self, output: Any, non_block: bool = False) -> Any:
                    ours.send(output)
                    assert ours.recv() is None
                    return super().execute_model(output, non_block)

            engine = core(config, Remote())
            engine.add_request(asking("early", tokens=4))
            engine.step_fn()
            engine.add_request(asking("late", tokens=1))
            engine.step_fn()  # both: the worker stalls
            engine.add_request(asking("after", tokens=1))
            engine.scheduler.finish_requests("after", RequestStatus.FINISHED_ABORTED)
            run(engine)
            ours.send(None)
            assert process.wait(60) == 0
        finally:
            process.kill()
            tritonprobe.uninstrument()
    exposed = {cost.id: cost.before.in_batch_ns + cost.after.in_batch_ns for cost in found.requests}
    assert 0.2e9 <= exposed["early"] < 0.25e9
    assert exposed["late"] == exposed["early"]
    assert exposed["after"] == 0
    families = {family.metric.name: family.samples for family in DirectoryReader(directory).collect()}
    assert {s.labels[2] for s in families["cold_seconds_total"] if s.labels[0] == "planted"} == {"1"}


def test_uninstrument_leaves_vllms_classes_as_they_came(runtime) -> None:
    owners = (Scheduler, EngineCore, AsyncLLM, WorkerWrapperBase, jit_monitor)
    before = [dict(vars(owner)) for owner in owners]
    tritonprobe.instrument()
    assert [dict(vars(owner)) for owner in owners] != before
    tritonprobe.uninstrument()
    assert [dict(vars(owner)) for owner in owners] == before


def test_what_is_under_way_when_we_go_ends_in_no_fault(watched, config) -> None:
    engine = core(config, Executor())
    engine.add_request(asking("r", tokens=6))
    engine.step_fn()
    tritonprobe.uninstrument()
    engine.step_fn()
    tritonprobe.instrument()
    run(engine)
    assert [cost.error for cost in watched.requests] == ["unwatched"]
    assert total_of(watched, "errors_total") == 0


def _series(runtime: Runtime, name: str) -> list[tuple[str, ...]]:
    return [s.labels for family in runtime.ledger.collect() if family.metric.name == name for s in family.samples]


def test_the_monitor_calls_disk_hits_compilations_and_we_do_not(watched, add, monkeypatch, caplog) -> None:
    from triton import knobs

    monkeypatch.setattr(jit_monitor, "_active", False)
    monkeypatch.setattr(jit_monitor, "HAS_TRITON", True)
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    with compile_only("cuda:90"):
        tensor = torch.empty(128)
        add(tensor, tensor, tensor, 128)
        jit_monitor.activate()
        add.kernel.device_caches.clear()  # as in a new process: the disk has it
        add(tensor, tensor, tensor, 128)
    told = [call.tier for call in watched.cold_calls if call.after_ready]
    assert told == ["disk"]
    assert vllm_warnings(caplog, "JIT compilation during inference") == 1


def vllm_warnings(caplog: Any, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_vllms_own_sampler_takes_the_made_up_logits() -> None:
    from vllm.v1.sample.ops import topk_topp_sampler

    from tritonprobe.adapter.engines.vllm_sampler import Sampler
    from tritonprobe.adapter.patching import Patches

    told: list[Any] = []
    patches = Patches()
    sampler = Sampler(SimpleNamespace(tell=told.append), lambda: True)
    sampler.install(patches, topk_topp_sampler)
    sampler.vocabulary = 1000
    sampler.warm("cpu")
    assert sampler._used == {(True, False), (False, True), (False, False)}
    assert patches.undo() == []
