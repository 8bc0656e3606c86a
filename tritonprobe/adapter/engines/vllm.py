"""vLLM: its API server, its engine cores and its workers, each attached by itself. Touches vLLM's V1 classes.

What is patched, and what for:

``vllm.triton_utils.jit_monitor.activate``            the end of vLLM's own warm-up: ready
``AsyncLLM.check_health``                             ready where there is no such end: the first healthy answer
``WorkerWrapperBase.init_worker``, ``execute_model``  the rank; which thread serves (see `vllm_workers`)
``Scheduler``, ``EngineCore.preprocess_add_request``  requests and steps (see `vllm_steps`)
``OpenAIServing._get_trace_headers``                  the client's `traceparent`, which travels with its request
``EngineCore.__init__``, ``AsyncLLM.__init__``        the line that says what was attached
``apply_top_k_top_p_pytorch``                         first uses of torch's own kernels (see `vllm_sampler`)
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.engines.attaching import Attachment, Part, expect, expect_awaited
from tritonprobe.adapter.engines.first_steps import FirstSteps
from tritonprobe.adapter.engines.host import Host, say
from tritonprobe.adapter.engines.vllm_sampler import Sampler
from tritonprobe.adapter.engines.vllm_steps import TRACEPARENT, Steps
from tritonprobe.adapter.engines.vllm_workers import Workers, engine_of
from tritonprobe.adapter.patching import Patches

TRIED = ("0.21.",)
PLUGIN = "tritonprobe"
"""The name of our entry point, as VLLM_PLUGINS would list it."""
MAX_HEADER = 256
"""Characters of a `traceparent` that travel with a request: what it has now, and what a later version may append."""

_MONITOR = "vllm.triton_utils.jit_monitor"


class Vllm:
    def __init__(self, host: Host) -> None:
        self._host = host
        sizes = FirstSteps(host.first_step)
        self._steps = Steps(host, sizes)
        self._sampler = Sampler(host, lambda: self.attachment.on)
        self._workers = Workers(host, sizes, lambda: self.attachment.on, self._begins)
        self._said: set[str] = set()
        self.attachment = Attachment(
            "vLLM",
            (
                Part("ready", _MONITOR, self._patch_monitor),
                Part("health", "vllm.v1.engine.async_llm", self._patch_server),
                Part("traces", "vllm.entrypoints.openai.engine.serving", self._patch_serving),
                Part("steps", "vllm.v1.core.sched.scheduler", self._steps.install),
                Part("arrivals", "vllm.v1.engine.core", self._steps.install_arrivals),
                Part("ranks", "vllm.v1.worker.worker_base", self._workers.install),
                Part("core", "vllm.v1.engine.core", self._patch_core),
                Part("sampler", "vllm.v1.sample.ops.topk_topp_sampler", self._sampler.install),
            ),
            self._steps.forget,
        )

    def _patch_monitor(self, patches: Patches, monitor: Any) -> None:
        expect(monitor.activate)

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def activate(*args: Any, **kwargs: Any) -> Any:
                # Before vLLM warns of each kernel that is compiled.
                if self.attachment.on and self._host.prewarm_as_set():
                    self._guarded(lambda: self._sampler.warm("cuda"))
                result = original(*args, **kwargs)
                if self.attachment.on:
                    self._ready("vLLM's warm-up has ended")
                return result

            return activate

        patches.replace(monitor, "activate", around)

    def _patch_server(self, patches: Patches, module: Any) -> None:
        server = module.AsyncLLM
        expect_awaited(server.check_health, "self")

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            async def check_health(*args: Any, **kwargs: Any) -> Any:
                result = await original(*args, **kwargs)
                if self.attachment.on and "ready" not in self._said:
                    self._ready("vLLM says that it is healthy")
                return result

            return check_health

        patches.replace(server, "check_health", around)
        patches.replace(server, "__init__", lambda original: self._made(original, "API server"))

    def _patch_serving(self, patches: Patches, module: Any) -> None:
        """vLLM has a place for the trace headers in each request, and leaves it empty unless it traces itself."""
        serving = module.OpenAIServing
        expect_awaited(serving._get_trace_headers, "self", "headers")

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            async def get_trace_headers(serving: Any, headers: Any, *args: Any, **kwargs: Any) -> Any:
                found = await original(serving, headers, *args, **kwargs)
                if found is None and self.attachment.on:
                    return self._sent(headers)
                return found

            return get_trace_headers

        patches.replace(serving, "_get_trace_headers", around)

    def _sent(self, headers: Any) -> dict[str, str] | None:
        try:
            sent = headers.get(TRACEPARENT)
            return None if sent is None else {TRACEPARENT: str(sent)[:MAX_HEADER]}
        except Exception:
            self._host.fault("vllm")
            return None

    def _patch_core(self, patches: Patches, module: Any) -> None:
        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            made = self._made(original, "engine core")

            @functools.wraps(original)
            def init(core: Any, *args: Any, **kwargs: Any) -> None:
                self._workers.core = os.getpid()
                made(core, *args, **kwargs)
                if self.attachment.on:
                    self._guarded(lambda: self._join(core))

            return init

        patches.replace(module.EngineCore, "__init__", around)

    def _join(self, core: Any) -> None:
        if not hasattr(getattr(core, "model_executor", None), "driver_worker"):  # its workers are processes
            self._host.join(engine_of(core.vllm_config))

    def _made(self, original: Callable[..., Any], role: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.attachment.on:
                self._introduce(role)
            return result

        return init

    def _begins(self, rank: str, vocabulary: int | None) -> None:
        self._sampler.vocabulary = vocabulary
        # A worker is not ready because another one is: it may be warming up still.
        self._host.await_ready(importlib.util.find_spec(_MONITOR) is not None)
        self._introduce(f"worker of rank {rank}")

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:
            self._host.fault("vllm")

    def _ready(self, why: str) -> None:
        try:
            self._said.add("ready")
            if self._host.engine_ready(why):
                say(
                    f"ready, for {why}; {self._host.startup()}; from here on each cold call is an incident "
                    "(vLLM's own monitor calls disk hits compilations, too)"
                )
        except Exception:
            self._host.fault("vllm")

    def _introduce(self, role: str) -> None:
        try:
            self.attachment.settle()
            if role not in self._said:
                self._said.add(role)
                say(f"process {os.getpid()}: {self._sentence(role)}")
        except Exception:
            self._host.fault("vllm")

    def _sentence(self, role: str) -> str:
        version = str(getattr(sys.modules.get("vllm"), "__version__", "of an unknown version"))
        tried = "" if version.startswith(TRIED) else f", which was not tried ({TRIED[0]}x was)"
        parts = ", ".join(sorted(self.attachment.attached)) or "nothing of it"
        missing = "".join(f"; no {name}: {why}" for name, why in sorted(self.attachment.missing.items()))
        allowed = os.environ.get("VLLM_PLUGINS")
        left_out = allowed is not None and PLUGIN not in allowed.split(",")
        plugin = "; VLLM_PLUGINS leaves our plugin out, so attached by the environment" if left_out else ""
        return f"vLLM {version}{tried}, {role}: kernels and cold calls, and {parts}{missing}{plugin}"
