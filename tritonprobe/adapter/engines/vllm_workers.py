"""vLLM's workers: their rank, which thread serves, and the time of the first steps. Touches `WorkerWrapperBase`.

A worker runs in the engine core's process or in one of its own. There it knows of no requests, and tells the others of
its stalls by the step that came with the scheduler output (see `vllm_steps`).
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tritonprobe.adapter.engines.attaching import UnknownShapeError, expect
from tritonprobe.adapter.engines.first_steps import ANY, FirstSteps, Size
from tritonprobe.adapter.engines.host import Host
from tritonprobe.adapter.engines.vllm_steps import STEP
from tritonprobe.adapter.patching import Patches
from tritonprobe.requests import Step


class _Began(NamedTuple):
    """A step's model, as it began to run: its size, the thread's cold calls before it, and the time."""

    size: Size
    cold_ns: int
    at_ns: int


class Workers:
    def __init__(
        self, host: Host, sizes: FirstSteps, is_on: Callable[[], bool], begins: Callable[[str, int | None], None]
    ) -> None:
        """``begins(rank, vocabulary)``: a worker of this process is going to be made."""
        self._host = host
        self._sizes = sizes
        self._is_on = is_on
        self._begins = begins
        self._serving: dict[int, bool] = {}  # threads that run models: whether in a process of the worker's own
        self._step: Step | None = None  # of a worker in a process of its own
        self.core = 0  # the process that has an engine core: this one, or the one it was forked from

    def install(self, patches: Patches, module: Any) -> None:
        wrapper = module.WorkerWrapperBase
        expect(wrapper.init_worker, "self", "all_kwargs")
        expect(wrapper.execute_model, "self", "scheduler_output")
        patches.replace(wrapper, "init_worker", self._init_worker)
        patches.replace(wrapper, "execute_model", self._execute_model)

    def _init_worker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_worker(worker: Any, all_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_on():
                try:
                    rank = _rank(all_kwargs[worker.rpc_rank])
                    self._host.set_rank(rank)
                    if self._is_own_process():
                        self._sizes.due.add(ANY)  # no scheduler is here
                        self._host.join(engine_of(all_kwargs[worker.rpc_rank]["vllm_config"]))
                    self._begins(rank, _vocabulary(all_kwargs[worker.rpc_rank]))
                except Exception:
                    self._host.fault("vllm")
            return original(worker, all_kwargs, *args, **kwargs)

        return init_worker

    def _execute_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Runs in every step, and does nothing where a scheduler of this process says that it need not be timed."""
        due = self._sizes.due

        @functools.wraps(original)
        def execute_model(worker: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if due:
                began = self._before(scheduler_output)
                if began is not None:
                    result = original(worker, scheduler_output, *args, **kwargs)
                    self._after(began)
                    return result
            return original(worker, scheduler_output, *args, **kwargs)

        return execute_model

    def _before(self, scheduler_output: Any) -> _Began | None:
        """A step's model runs now: what is to be known after it, if that has to be told."""
        try:
            own = self._serving.get(threading.get_ident())
            if own is None:
                own = self._serves()
            due = self._sizes.due
            if own and ANY in due:  # a scheduler that is here opens its steps itself
                self._work_on(scheduler_output)
            if not self._is_on() or not (ANY in due or id(scheduler_output) in due):
                return None
            due.discard(id(scheduler_output))
            tokens = scheduler_output.total_num_scheduled_tokens
            size = (tokens, len(scheduler_output.num_scheduled_tokens)) if tokens.__class__ is int else None
            if size is None or size in self._sizes.known:
                return None
            return _Began(size, self._host.cold_ns(), time.monotonic_ns())
        except Exception:
            self._host.fault("vllm")
            return None

    def _after(self, began: _Began) -> None:
        try:
            took = time.monotonic_ns() - began.at_ns
            self._sizes.step(began.size, took, self._host.cold_ns() - began.cold_ns)
        except Exception:
            self._host.fault("vllm")

    def _serves(self) -> bool:
        """The first model that this thread runs for a request: its cold calls are stalls, and start-up is over."""
        own = self._is_own_process()
        try:
            if self._is_on():
                self._serving[threading.get_ident()] = own
                with self._host.live.step(()):
                    pass
                self._host.await_ready(False)
        except Exception:
            self._host.fault("vllm")
        return own

    def _is_own_process(self) -> bool:
        """Whether this worker's process is not the engine core's."""
        return self.core != os.getpid()

    def _work_on(self, scheduler_output: Any) -> None:
        """A worker in a process of its own: what stalls from here on, until the next step, is in this one."""
        step, self._step = self._step, None
        if step is not None:
            step.end()
        if self._is_on():
            self._step = self._host.live.step((), id=getattr(scheduler_output, STEP, None)).begin()


def _vocabulary(kwargs: Any) -> int | None:
    """How many logits a row has; None if the worker is not told."""
    try:
        return int(kwargs["vllm_config"].model_config.get_vocab_size())
    except Exception:
        return None


def engine_of(config: Any) -> str:
    """What the processes of one engine call it: vLLM makes an id for each instance."""
    parallel = config.parallel_config
    return f"vllm-{config.instance_id}-{getattr(parallel, 'data_parallel_rank', 0) or 0}"


def _rank(kwargs: Any) -> str:
    """The worker's rank in the whole deployment: within its engine, and behind those of the engines before it."""
    parallel = kwargs["vllm_config"].parallel_config
    before = int(getattr(parallel, "data_parallel_rank", 0) or 0) * int(getattr(parallel, "world_size", 1) or 1)
    if "rank" not in kwargs:
        raise UnknownShapeError("a worker is told no rank")
    return str(before + int(kwargs["rank"]))
