"""A worker for vLLM that answers each step at once. Its kernel is compiled for each new number of tokens, for real."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from tritonprobe.testing import compile_only


@triton.jit
def model_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, mask=offsets < n) + 1, mask=offsets < n)


class HollowWorker(WorkerBase):  # type: ignore[misc]  # vLLM is not there when types are checked
    def init_device(self) -> None:
        self.device = torch.device("cpu")
        self._compile_only = compile_only("cuda:90")
        self._compile_only.__enter__()
        self._done: dict[str, list[int]] = {}  # request -> tokens of its prompt, tokens computed

    def load_model(self, **_: Any) -> None:
        """There is none."""

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return {"layer": FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)}

    def determine_available_memory(self) -> int:
        return 1 << 30

    def initialize_from_config(self, _: Any) -> None:
        """There is no memory to divide."""

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        self._launch(1)
        from vllm.triton_utils.jit_monitor import activate

        activate()
        return CompilationTimes(0.0, 0.0)

    def shutdown(self) -> None:
        """There is nothing to shut down."""

    def execute_model(self, output: Any) -> Any:
        names = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        if names:
            self._launch(output.total_num_scheduled_tokens)
        for request in output.scheduled_new_reqs:
            self._done[request.req_id] = [len(request.prompt_token_ids), request.num_computed_tokens]
        for name, tokens in output.num_scheduled_tokens.items():
            done = self._done[name]
            done[1] += tokens
            sampled.append([7 + done[1] % 50] if done[1] >= done[0] else [])
        self._sampled = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return None if names else self._sampled

    def sample_tokens(self, _: Any) -> Any:
        return self._sampled

    @staticmethod
    def _launch(tokens: int) -> None:
        model_kernel[(1,)](torch.empty(16), tokens, BLOCK=triton.next_power_of_2(tokens))
