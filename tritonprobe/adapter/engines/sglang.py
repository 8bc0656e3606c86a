"""SGLang: its HTTP server and its schedulers, which run the models. Touches `Scheduler` and the server's warm-up.

Written from the sources of SGLang 0.5.23 and never run with it: each patch checks what it finds, and stays away else.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from tritonprobe.adapter.engines.attaching import Attachment, Part, expect
from tritonprobe.adapter.engines.host import Host, say
from tritonprobe.adapter.patching import Patches
from tritonprobe.requests import LiveRequest


class Sglang:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._requests: dict[str, tuple[LiveRequest, int]] = {}  # id -> request, output tokens told so far
        self._said = False
        self.attachment = Attachment(
            "SGLang",
            (
                Part("ready", "sglang.srt.entrypoints.http_server", self._patch_server),
                Part("steps", "sglang.srt.managers.scheduler", self._patch_scheduler),
            ),
            self._forget,
        )

    def _patch_server(self, patches: Patches, module: Any) -> None:
        expect(module._wait_and_warmup, "server_args")

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wait_and_warmup(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self.attachment.on:
                    self._guarded(self._warm, module)
                return result

            return wait_and_warmup

        patches.replace(module, "_wait_and_warmup", around)

    def _warm(self, module: Any) -> None:
        state = module._global_state
        why = "SGLang's warm-up has ended"
        if state is not None and state.tokenizer_manager.is_healthy() and self._host.engine_ready(why):
            say(f"ready, for {why}; {self._host.startup()}")

    def _patch_scheduler(self, patches: Patches, module: Any) -> None:
        scheduler = module.Scheduler
        expect(scheduler.handle_generate_request, "self", "recv_req")
        expect(scheduler.run_batch, "self", "batch")
        expect(scheduler.process_batch_result, "self", "batch", "result")
        patches.replace(scheduler, "handle_generate_request", self._handle)
        patches.replace(scheduler, "run_batch", self._run_batch)
        patches.replace(scheduler, "process_batch_result", self._process)

    def _handle(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def handle_generate_request(scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
            if self.attachment.on:
                self._guarded(self._begin, scheduler, recv_req)
            return original(scheduler, recv_req, *args, **kwargs)

        return handle_generate_request

    def _run_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.attachment.on:
                return original(scheduler, batch, *args, **kwargs)
            with self._host.live.step(self._live_in(batch)):
                return original(scheduler, batch, *args, **kwargs)

        return run_batch

    def _live_in(self, batch: Any) -> list[LiveRequest]:
        known = self._requests
        try:
            return [known[req.rid][0] for req in getattr(batch, "reqs", None) or () if req.rid in known]
        except Exception:
            self._host.fault("sglang")
            return []

    def _process(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def process_batch_result(scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            returned = original(scheduler, batch, result, *args, **kwargs)
            if self._requests:
                self._guarded(self._tokens, batch)
            return returned

        return process_batch_result

    def _guarded(self, do: Callable[..., None], *args: Any) -> None:
        try:
            do(*args)
        except Exception:
            self._host.fault("sglang")

    def _begin(self, scheduler: Any, recv_req: Any) -> None:
        if not self._said:
            self._said = True
            self._introduce()
        model = str(getattr(scheduler.server_args, "served_model_name", "") or "")
        self._requests[recv_req.rid] = self._host.live.request(recv_req.rid, model=model), 0

    def _introduce(self) -> None:
        version = getattr(sys.modules.get("sglang"), "__version__", "of an unknown version")
        parts = ", ".join(sorted(self.attachment.attached))
        missing = "".join(f"; no {name}: {why}" for name, why in sorted(self.attachment.missing.items()))
        say(f"process {os.getpid()}: SGLang {version} (never tried): kernels and cold calls, and {parts}{missing}")

    def _tokens(self, batch: Any) -> None:
        for req in batch.reqs:
            found = self._requests.get(req.rid)
            if found is None:
                continue
            request, told = found
            if len(req.output_ids) > told:
                request.token(len(req.output_ids) - told)
            self._requests[req.rid] = request, len(req.output_ids)
            if req.finished():
                del self._requests[req.rid]
                request.finish()

    def _forget(self) -> None:
        while self._requests:
            self._requests.popitem()[1][0].finish("unwatched")
