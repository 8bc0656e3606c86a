"""vLLM's requests and steps, as its scheduler decides them. Touches `Scheduler` and `EngineCore`.

A step is open from `schedule()` to the `update_from_output()` that gets the same scheduler output back. With
asynchronous scheduling, and with pipeline batches, several are open at a time and overlap; each has its own requests.
Steps in a row that work on the same requests, as most do that decode, are one: a step then costs next to nothing. A
request begins when the engine core's socket gets it, be its loop in a step or not; what the API server did before is
not in its times.

The step's id travels to the workers in the scheduler output, as one more attribute: what stalls there is charged to the
requests of that step here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tritonprobe.adapter.engines.attaching import UnknownShapeError, expect
from tritonprobe.adapter.engines.first_steps import FirstSteps
from tritonprobe.adapter.engines.host import Host
from tritonprobe.adapter.patching import Patches
from tritonprobe.requests import LiveRequest, Step

_T = TypeVar("_T")

MAX_RETIRED = 64
"""Runs with an outstanding output, behind the current one; an engine has as many as pipeline stages. Beyond it the
oldest is ended: an execution failed."""
MAX_ARRIVED = 10_000
"""Requests that arrived and that the scheduler does not have yet. Beyond it the oldest is given up: it was refused."""

SCHEDULED = frozenset(("num_scheduled_tokens", "total_num_scheduled_tokens"))
"""What a scheduler output has to say."""
ERRORS = ("aborted", "ignored", "error")
"""Ends of a request, in vLLM's words, that are no good ones."""
TRACEPARENT = "traceparent"
"""Of the W3C headers that travel with a request, the one that says whose child it is."""
STEP = "_tritonprobe_step"
"""The attribute of a scheduler output that holds its step's id. Set by its name, which is faster."""


@dataclass(slots=True)
class _Request:
    """A request of the scheduler's. Its first tokens are told when they come, all others when it ends."""

    live: LiveRequest
    theirs: Any
    told: int = 0

    def finish(self, error: str | None) -> None:
        late = self.theirs.num_output_tokens - self.told
        if late > 0:
            self.live.token(late)
        self.live.finish(error)


@dataclass(slots=True)
class _Run:
    """Steps in a row on the same requests. All that a step of theirs looks at is here, close together."""

    ids: list[str]  # the requests'
    id: str
    outstanding: int
    tokens: int | None  # of a step whose size is known to `FirstSteps`
    step: Step


class Steps:
    def __init__(self, host: Host, sizes: FirstSteps) -> None:
        """``sizes`` is asked which steps have to be timed by whoever runs the model in this process."""
        self._host = host
        self._sizes = sizes
        self._on = False
        self._requests: dict[str, _Request] = {}
        self._lives: dict[str, LiveRequest] = {}  # ours of `_requests`, for the steps
        self._arrived: dict[str, LiveRequest] = {}  # those that the scheduler does not have yet
        self._awaited: set[str] = set()  # requests without a token so far
        self._freed: list[tuple[str, str | None]] = []  # requests that ended, each with its error
        self._current: _Run | None = None
        self._numbers = itertools.count(1)
        self._retired: dict[str | None, _Run] = {}  # whose last output is not here yet

    def install(self, patches: Patches, module: Any) -> None:
        scheduler = module.Scheduler
        expect(scheduler.add_request, "self", "request")
        expect(scheduler.schedule, "self")
        expect(scheduler.update_from_output, "self", "scheduler_output", "model_runner_output")
        expect(scheduler.finish_requests, "self", "request_ids", "finished_status")
        expect(scheduler._free_request, "self", "request")
        if not isinstance(getattr(module.Request, "num_output_tokens", None), property):
            raise UnknownShapeError("Request does not say how many tokens it has put out")
        if not getattr(module.SchedulerOutput, "__dataclass_fields__", {}).keys() >= SCHEDULED:
            raise UnknownShapeError(f"SchedulerOutput does not say {' and '.join(sorted(SCHEDULED))}")
        patches.replace(scheduler, "add_request", self._add_request)
        patches.replace(scheduler, "schedule", self._schedule)
        patches.replace(scheduler, "update_from_output", self._update_from_output)
        patches.replace(scheduler, "finish_requests", self._finish_requests)
        patches.replace(scheduler, "_free_request", self._free_request)
        self._on = True

    def install_arrivals(self, patches: Patches, module: Any) -> None:
        """Requests begin when they arrive, not when the engine core's loop, which may be in a stall, takes them in."""
        core = module.EngineCore
        expect(core.preprocess_add_request, "self", "request")
        patches.replace(core, "preprocess_add_request", self._preprocess_add_request)

    def forget(self) -> None:
        """Everything was taken back: what is under way is not watched to its end, and its times end here.

        Runs in the switch's thread, beside the engine's. What these begin meanwhile they forget themselves, since
        `_on` is the first thing to change: whoever adds something asks for it afterwards.
        """
        self._on = False
        self._retire()
        for run in list(self._retired.values()):
            run.step.end()
        self._retired.clear()
        self._freed.clear()
        self._awaited.clear()
        self._lives.clear()
        for held in (self._arrived, self._requests):
            with contextlib.suppress(KeyError):  # until it is empty, be it by another thread
                while True:
                    held.popitem()[1].finish("unwatched")

    def _preprocess_add_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Runs in a thread of its own, while the engine core's loop is in a step.

        The request's clock starts before: beside a compile, which leaves other threads little of the interpreter, this
        takes long.
        """

        @functools.wraps(original)
        def preprocess_add_request(core: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            arrived = self._guarded(self._arrive, core, request) if self._on else None
            try:
                return original(core, request, *args, **kwargs)
            except BaseException:
                if arrived is not None:
                    self._guarded(self._refuse, request, arrived)
                raise

        return preprocess_add_request

    def _add_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def add_request(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on:
                self._guarded(self._begin, scheduler, request)
            return original(scheduler, request, *args, **kwargs)

        return add_request

    def _schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """This and the next run in every step, and find nothing of ours in the caches: no calls, few looks."""

        @functools.wraps(original)
        def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(scheduler, *args, **kwargs)
            if self._on:
                try:
                    ids, run = list(output.num_scheduled_tokens), self._current
                    if run is None or ids != run.ids:
                        run = self._start(ids)
                    if run is not None:
                        output._tritonprobe_step = run.id
                        run.outstanding += 1
                        if output.total_num_scheduled_tokens != run.tokens:
                            self._expect(output, run)
                except Exception:
                    self._host.fault("vllm_steps")
            return output

        return schedule

    def _update_from_output(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update_from_output(scheduler: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(scheduler, scheduler_output, *args, **kwargs)
            finally:
                try:
                    run = self._current
                    if run is not None and run.id is scheduler_output._tritonprobe_step:
                        run.outstanding -= 1
                    else:
                        self._end(scheduler_output)
                except Exception:  # it has no such attribute: it was for nobody, or nobody watched
                    self._guarded(self._end, scheduler_output)
            if self._awaited:
                self._guarded(self._first_tokens, result)
            if self._freed:
                self._guarded(self._finish)
            return result

        return update_from_output

    def _finish_requests(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def finish_requests(scheduler: Any, request_ids: Any, finished_status: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scheduler, request_ids, finished_status, *args, **kwargs)
            if self._freed:
                self._guarded(self._finish)
            return result

        return finish_requests

    def _free_request(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Where every request comes to its end, be it by its last token or an abort: told of after its last step."""

        @functools.wraps(original)
        def free_request(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if self._requests:
                self._guarded(self._free, request)
            return original(scheduler, request, *args, **kwargs)

        return free_request

    def _guarded(self, do: Callable[..., _T], *args: Any) -> _T | None:
        try:
            return do(*args)
        except Exception:
            self._host.fault("vllm_steps")
            return None

    def _arrive(self, core: Any, request: Any) -> LiveRequest | None:
        name = request.request_id
        if name in self._requests or name in self._arrived:  # a further chunk of a streamed input
            return None
        if len(self._arrived) >= MAX_ARRIVED:
            self._arrived.pop(next(iter(self._arrived)), None)
        live = self._arrived[name] = self._live(core, request)
        if not self._on:
            self.forget()
        return live

    def _refuse(self, request: Any, arrived: LiveRequest) -> None:
        """It never was a request of the engine's, and is in no figure."""
        if self._arrived.pop(request.request_id, None) is arrived:
            arrived.record = False
            arrived.finish()

    def _begin(self, scheduler: Any, request: Any) -> None:
        name = request.request_id
        live = self._arrived.pop(name, None)
        if name not in self._requests:
            live = self._lives[name] = live or self._live(scheduler, request)
            self._requests[name] = _Request(live, request)
            self._awaited.add(name)
            if not self._on:
                self.forget()

    def _live(self, owner: Any, request: Any) -> LiveRequest:
        """A request of vLLM's, under its own name and model, in its client's trace if that is known: see `vllm`."""
        model = str(owner.vllm_config.model_config.served_model_name)  # as vLLM's own metrics have it
        sent = getattr(request, "trace_headers", None) or {}
        return self._host.live.request(request.request_id, model, sent.get(TRACEPARENT))

    def _start(self, ids: list[str]) -> _Run | None:
        """The first step on other requests than those before it; None if there are none."""
        self._retire()
        if not ids:
            return None
        number = f"{os.getpid()}.{next(self._numbers)}"
        lives = self._lives
        try:
            batch = list(map(lives.__getitem__, ids))
        except KeyError:  # some came while nobody watched
            batch = [lives[name] for name in ids if name in lives]
        run = self._current = _Run(ids, number, 0, None, self._host.live.step(batch, id=number).begin())
        if not self._on:
            self.forget()
            return None
        return run

    def _expect(self, output: Any, run: _Run) -> None:
        """A step of another number of tokens than the run's last one of a known size."""
        tokens = output.total_num_scheduled_tokens
        if tokens.__class__ is int and self._sizes.expect(id(output), (tokens, len(run.ids))):
            run.tokens = tokens

    def _end(self, output: Any) -> None:
        """An output is here that is none of the current run's."""
        run = self._retired.get(getattr(output, STEP, None))
        if run is not None:
            run.outstanding -= 1
            if run.outstanding == 0:
                self._retired.pop(run.id, None)
                run.step.end()

    def _retire(self) -> None:
        """The next step is for other requests than the current run, which ends with its last output."""
        run, self._current = self._current, None
        if run is None:
            return
        if run.outstanding == 0:
            run.step.end()
            return
        self._retired[run.id] = run
        if len(self._retired) > MAX_RETIRED:
            self._retired.pop(next(iter(self._retired))).step.end()

    def _first_tokens(self, by_client: dict[int, Any]) -> None:
        for outputs in by_client.values():
            for output in outputs.outputs:
                name = output.request_id
                request = self._requests.get(name) if name in self._awaited and output.new_token_ids else None
                if request is not None:
                    self._awaited.discard(name)
                    request.told = len(output.new_token_ids)
                    request.live.token(request.told)

    def _free(self, request: Any) -> None:
        status = str(getattr(request.status, "name", request.status)).lower().removeprefix("finished_")
        self._freed.append((request.request_id, status if status in ERRORS else None))

    def _finish(self) -> None:
        self._retire()  # without them
        freed, self._freed = self._freed, []
        for name, error in freed:
            self._awaited.discard(name)
            self._lives.pop(name, None)
            request = self._requests.pop(name, None)
            if request is not None:
                request.finish(error)
