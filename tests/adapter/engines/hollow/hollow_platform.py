"""A platform plugin for vLLM whose workers compute nothing and compile for real, so that vLLM serves without a GPU.

API server, engine core, scheduler, executor, plugins and the JIT monitor are vLLM's own. Found by the entry point in
the folder beside it, once that is on PYTHONPATH.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.interface import Platform, PlatformEnum


def register() -> str:
    return "hollow_platform.HollowPlatform"


class HollowPlatform(Platform):  # type: ignore[misc]  # vLLM is not there when types are checked
    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "HOLLOW_VISIBLE_DEVICES"

    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        config.parallel_config.worker_cls = "hollow_worker.HollowWorker"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "hollow"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 8 << 30

    @classmethod
    def inference_mode(cls) -> Any:
        import torch

        return torch.no_grad()

    @classmethod
    def set_device(cls, device: Any) -> None:
        """There is one."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def import_kernels(cls) -> None:
        """There are none."""

    @classmethod
    def get_attn_backend_cls(cls, *_: Any, **__: Any) -> str:
        return "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
