"""First uses of torch's own kernels in vLLM's sampler, which no compiler tells of. Touches `apply_top_k_top_p_pytorch`.

CUDA loads a kernel of torch at its first launch: some 40 to 85 ms for those of the first request with top-p or top-k
(docs/measurements/vllm_eager.json, vllm_graph.json). Each path through the function is timed once. Where a census is
replayed the paths are taken before vLLM is ready, with made-up logits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.calls import OpenCall
from tritonprobe.adapter.engines.attaching import expect
from tritonprobe.adapter.engines.host import Host
from tritonprobe.adapter.outside import BUCKET
from tritonprobe.adapter.patching import Patches

FIRST_USE = "first_use"
LEAST_NS = 5_000_000
"""Below this a first use was not cold: nothing had to be loaded."""
ROWS = (1, 2, 7)
"""Of made-up logits: torch sorts one row by other kernels than several; from 8 on vLLM has a Triton kernel."""


class Sampler:
    def __init__(self, host: Host, is_on: Callable[[], bool]) -> None:
        self._host = host
        self._is_on = is_on
        self._used: set[tuple[bool, bool]] = set()  # paths taken before
        self._module: Any = None
        self.vocabulary: int | None = None
        """How many tokens the model knows, once a worker has said so."""

    def install(self, patches: Patches, module: Any) -> None:
        expect(module.apply_top_k_top_p_pytorch, "logits", "k", "p")
        patches.replace(module, "apply_top_k_top_p_pytorch", functools.partial(self._around, module.__name__))
        self._module = module

    def _around(self, module: str, original: Callable[..., Any]) -> Callable[..., Any]:
        used = self._used

        @functools.wraps(original)
        def apply(logits: Any, k: Any, p: Any, *args: Any, **kwargs: Any) -> Any:
            path = (k is None, p is None)
            if path in used or not self._is_on():
                return original(logits, k, p, *args, **kwargs)
            used.add(path)
            with _FirstUse(self._host, f"{module}.apply_top_k_top_p_pytorch"):
                return original(logits, k, p, *args, **kwargs)

        return apply

    def warm(self, device: str) -> None:
        """Takes each path. Raises whatever that raises."""
        import torch

        if self._module is None or self.vocabulary is None:
            return
        source = torch.Generator(device)  # of its own: the program's random numbers stay as they would have been
        with torch.inference_mode():
            for rows in ROWS:
                for k, p in ((True, False), (False, True), (True, True)):
                    logits = torch.randn(rows, self.vocabulary, device=device, generator=source)
                    top_k = torch.full((rows,), 20, dtype=torch.int32, device=device) if k else None
                    top_p = torch.full((rows,), 0.9, device=device) if p else None
                    self._module.apply_top_k_top_p_pytorch(logits, top_k, top_p)


class _FirstUse:
    """A call that may have had to load what it runs, seen once it is over: a cold call if it took that long."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name

    def __enter__(self) -> None:
        self._call = OpenCall(self._name, "launch", None)
        self._call.enter(FIRST_USE)

    def __exit__(self, *error: object) -> None:
        call = self._call
        call.leave(0)
        if error[0] is not None or call.phases[FIRST_USE] < LEAST_NS:
            return
        try:
            call.kind, call.bucket = FIRST_USE, BUCKET
            call.reasons = ("first use of torch's kernels on this path",)
            self._host.tell(call.finished())
        except Exception:
            self._host.fault("vllm_sampler")
