"""A plugin for vLLM that plants a stall of known length in one step, on command, and keeps a log of its own.

Found by the entry point in the folder beside it, once that is on PYTHONPATH; without TRITONPROBE_PLANT, a folder, it
does nothing. While there is a file `on` in that folder it wraps methods of vLLM's, and each process that does has a
file `on-PID` (and since its start `here-PID`); otherwise vLLM is as it came. For one rank: the worker is in the engine
core's process.

A command is `arm.json` in the folder, taken while nothing runs: ``{"number": 3, "kind": "sleep", "seconds": 0.3,
"together": 8, "limit": 5, "step": 8}``. The engine then holds its queue until `together` requests have come, so that
two runs begin alike; runs at most `limit` at a time (None: as many as vLLM would); and stalls in its step number
`step`, which it announces by the file `stalling-3`. The kinds: `sleep` within `cold_call`, `compile` (a kernel that no
process has compiled before), and `none`, which announces and does not stall.

The log (`log-PID.jsonl`) says when requests came and went, which were in each step, and when the stall was, by this
file's clock; and, as `cost`, what tritonprobe charged.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

FOLDER = "TRITONPROBE_PLANT"
ROUNDS = 28
"""Of the kernel: more take longer to compile."""
LOOK_SECONDS = 0.2
now = time.monotonic_ns


@triton.jit
def slow_to_compile_kernel(x_ptr, n, SALT: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """With a new `SALT` it is in no cache."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    for i in tl.static_range(ROUNDS):
        x = tl.where(x > i, tl.sin(x) * i + tl.exp(x), tl.cos(x) - tl.log(x + i + 1))
    tl.store(x_ptr + at, x, mask=at < n)


def install() -> None:
    """The entry point, called in each of vLLM's processes."""
    folder = os.environ.get(FOLDER)
    if folder:
        Path(folder).mkdir(exist_ok=True)
        threading.Thread(target=Plant(Path(folder)).follow, name="tritonprobe-plant", daemon=True).start()


class Plant:
    def __init__(self, folder: Path) -> None:
        self._arm = folder / "arm.json"
        self._folder = folder
        self._undo: list[Callable[[], None]] = []
        self._log = -1
        self._command: dict[str, Any] | None = None
        self._limit: int | None = None  # vLLM's own
        self._gathering = False
        self._steps = 0
        self._subscribed = False

    def follow(self) -> None:
        """Does what the file `on` says, as long as the process lives."""
        (self._folder / f"here-{os.getpid()}").touch()
        done = self._folder / f"on-{os.getpid()}"
        while True:
            wanted = (self._folder / "on").exists()
            if wanted and not self._undo:
                self._wrap_all()
                done.touch()
            elif self._undo and not wanted:
                while self._undo:
                    self._undo.pop()()
                self._subscribed = False
                done.unlink()
            time.sleep(LOOK_SECONDS)

    def _wrap_all(self) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        self._wrap(EngineCore, "preprocess_add_request", self._came)
        self._wrap(Scheduler, "schedule", self._scheduling)
        self._wrap(Scheduler, "_free_request", self._went)
        self._wrap(WorkerWrapperBase, "execute_model", self._executing)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original))

    def _came(self, original: Callable[..., Any], core: Any, request: Any, *more: Any, **named: Any) -> Any:
        at = now()
        try:
            return original(core, request, *more, **named)
        finally:  # not before: beside a compile, a thread that has written waits for the interpreter again
            self._write(what="came", id=request.request_id, at=at)

    def _went(self, original: Callable[..., Any], scheduler: Any, request: Any, *more: Any, **named: Any) -> Any:
        self._write(what="went", id=request.request_id, at=now())
        return original(scheduler, request, *more, **named)

    def _scheduling(self, original: Callable[..., Any], scheduler: Any, *more: Any, **named: Any) -> Any:
        if self._limit is None:
            self._limit = scheduler.max_num_running_reqs
        if not scheduler.running and self._arm.exists():
            self._command = json.loads(self._arm.read_text())
            self._arm.unlink()
            self._gathering = True
            self._steps = 0
        command = self._command
        if self._gathering and command is not None:
            if len(scheduler.waiting) < command["together"]:
                scheduler.max_num_running_reqs = 0
            else:
                self._gathering = False
                scheduler.max_num_running_reqs = command["limit"] or self._limit
                self._write(what="begun", number=command["number"], at=now())
        return original(scheduler, *more, **named)

    def _executing(self, original: Callable[..., Any], worker: Any, output: Any, *more: Any, **named: Any) -> Any:
        ids = list(output.num_scheduled_tokens)
        if not ids:
            return original(worker, output, *more, **named)
        if not self._subscribed:
            self._subscribe()
            self._stay()
        start = now()
        self._steps += 1
        command = self._command
        if command is not None and self._steps == command["step"]:
            self._command = None
            self._stall(command, ids)
        result = original(worker, output, *more, **named)
        self._write(what="step", step=self._steps, ids=ids, start=start, end=now())
        return result

    def _stall(self, command: dict[str, Any], ids: list[str]) -> None:
        (self._folder / f"stalling-{command['number']}").touch()
        start = now()
        if command["kind"] == "compile":
            device = "cuda" if torch.cuda.is_available() else "cpu"
            slow_to_compile_kernel[(1,)](torch.zeros(64, device=device), 64, time.time_ns() // 1000, ROUNDS, 64)
        elif command["kind"] == "sleep":
            import tritonprobe

            with tritonprobe.cold_call("planted.compiler", kind="planted"):
                time.sleep(command["seconds"])
        self._write(what="stall", number=command["number"], ids=ids, start=start, end=now())

    def _subscribe(self) -> None:
        from tritonprobe.runtime import current

        self._subscribed = True
        bus = current().bus
        bus.subscribe(self._cost)
        self._undo.append(lambda: bus.unsubscribe(self._cost))

    def _stay(self) -> None:
        """Keeps the engine on one core: on another its pace may be another by a half, for as long as a run takes."""
        thread, allowed = threading.get_native_id(), os.sched_getaffinity(0)
        os.sched_setaffinity(thread, {max(allowed)})
        self._undo.append(lambda: os.sched_setaffinity(thread, allowed))

    def _cost(self, event: Any) -> None:
        if type(event).__name__ == "RequestCost":
            before, after = event.before, event.after
            self._write(
                what="cost",
                id=event.id,
                start=event.start_ns,
                end=event.end_ns,
                in_batch=before.in_batch_ns + after.in_batch_ns,
                queued=before.queued_ns + after.queued_ns,
            )

    def _write(self, **line: object) -> None:
        """One write, which the system appends as a whole: several threads may do it."""
        if self._log < 0:
            path = self._folder / f"log-{os.getpid()}.jsonl"
            self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(self._log, json.dumps(line).encode() + b"\n")
