"""Continuous batching: a thread that runs steps for as long as there is work.

Each step takes in waiting prompts while slots and the step's token budget last, and adds one token to each sequence
that runs already. A step that raises fails its own generations; the engine goes on. Knows no HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import tritonprobe
from examples.llm_server.config import EngineConfig
from examples.llm_server.generation import Emit, Failed, Generation, Sampling, Token
from examples.llm_server.model import Model
from examples.llm_server.tokens import EOS
from tritonprobe import runtime
from tritonprobe.model import Event, RequestCost

log = logging.getLogger("examples.llm_server")

CANCELLED = "Cancelled"
"""The error of a request whose client went away."""


class QueueFullError(RuntimeError):
    """As many requests wait as the engine lets wait."""


class StoppedError(RuntimeError):
    """The engine takes no more requests."""


class PromptError(ValueError):
    """A request this engine cannot run; the message is a sentence for the client."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is."""

    waiting: int
    running: int
    slots: int


class Engine:
    """Runs `model` in a thread of its own, from `start` to `stop`."""

    def __init__(self, model: Model, config: EngineConfig, name: str = "") -> None:
        """``name`` is the label of the request metrics."""
        self._model = model
        self._config = config
        self._name = name
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._free = list(reversed(range(config.slots)))
        self._stopping = False
        self._ending: str | None = None
        self._cost: RequestCost | None = None
        # Guards what submitters and the thread share: _waiting and _stopping.
        self._work = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="llm-engine", daemon=True)

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after the step in progress, if any; what has not finished by then fails."""
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def load(self) -> Load:
        return Load(len(self._waiting), len(self._running), self._config.slots)

    def submit(
        self, request_id: str, prompt: list[int], sampling: Sampling, emit: Emit, traceparent: str | None = None
    ) -> Generation:
        """Queues a prompt. Raises PromptError, QueueFullError or StoppedError; else `emit` gets what becomes of it.

        ``traceparent`` is the header that the client sent, if any: the request then belongs to its trace.
        """
        self._check(prompt, sampling)
        with self._work:
            if self._stopping:
                raise StoppedError("this server is shutting down")
            if len(self._waiting) >= self._config.queue:
                raise QueueFullError(f"{self._config.queue} requests are waiting already; try again later")
            request = tritonprobe.request(request_id, model=self._name, traceparent=traceparent)
            generation = Generation(request_id, prompt, sampling, emit, request)
            self._waiting.append(generation)
            self._work.notify()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Gives up `generation`: at once while it waits, before the next step while it runs. Nothing more is emitted.

        Does no harm to one that has ended.
        """
        with self._work:
            generation.cancelled = True
            if generation in self._waiting:
                self._waiting.remove(generation)
                generation.request.finish(error=CANCELLED)
            self._work.notify()

    def _check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        limit, vocab = self._config.max_len, self._config.vocab
        if not prompt:
            raise PromptError("the prompt is empty; send at least one token")
        if len(prompt) + sampling.max_tokens > limit:
            raise PromptError(
                f"the prompt's {len(prompt)} tokens and max_tokens={sampling.max_tokens} are more than the {limit} "
                "tokens that this server holds for a request (--max-len)"
            )
        for place, token in enumerate(prompt):
            if not 0 <= token < vocab:
                raise PromptError(f"token {token} at place {place} of the prompt is not one of this model's {vocab}")

    def _run(self) -> None:
        try:
            with runtime.current().bus.subscribed(self._keep_cost):
                while (batch := self._next_batch()) is not None:
                    self._step(batch)
        finally:  # whatever ended the thread, nobody must wait for it
            with self._work:
                self._stopping = True
                left = [*self._running, *self._waiting]
                self._waiting.clear()
            for generation in left:
                self._fail(generation, Failed("the server shut down before this request finished", 503), "Stopped")

    def _next_batch(self) -> list[Generation] | None:
        """Waits for work and chooses a step's generations, new ones first; None once the engine stops."""
        with self._work:
            while True:
                self._drop_cancelled()
                if self._stopping:
                    return None
                self._running = [*self._admit(), *self._running]
                if self._running:
                    return self._running
                self._work.wait()

    def _drop_cancelled(self) -> None:
        for generation in [g for g in self._running if g.cancelled]:
            self._release(generation)
            generation.request.finish(error=CANCELLED)

    def _admit(self) -> list[Generation]:
        new: list[Generation] = []
        budget = self._config.prefill_tokens
        while self._waiting and self._free and (not new or len(self._waiting[0].prompt) <= budget):
            generation = self._waiting.popleft()
            budget -= len(generation.prompt)
            generation.slot = self._free.pop()
            new.append(generation)
        return new

    def _step(self, batch: list[Generation]) -> None:
        try:
            pieces = [generation.piece() for generation in batch]
            with tritonprobe.step([(g.request, len(piece.tokens)) for g, piece in zip(batch, pieces, strict=True)]):
                tokens = self._model.next_tokens(pieces)
        except Exception as error:
            log.exception("a step of %d requests failed; they get an error, the engine goes on", len(batch))
            said = str(error).strip().partition("\n")[0][:200]  # a compiler's errors are pages long; the log has them
            failed = Failed(f"the step that ran this request failed: {type(error).__name__}: {said}", 500)
            for generation in batch:
                self._fail(generation, failed, type(error).__name__)
            return
        for generation, token in zip(batch, tokens, strict=True):
            self._hand_out(generation, token)

    def _hand_out(self, generation: Generation, token: int) -> None:
        generation.tokens.append(token)
        generation.request.token()
        reason = generation.finish_reason(EOS)
        if reason is None:
            self._emit(generation, Token(token))
            return
        self._release(generation)
        self._ending, self._cost = generation.id, None
        generation.request.finish()  # publishes the cost, which `_keep_cost` takes before this returns
        self._emit(generation, Token(token, reason, self._cost))

    def _keep_cost(self, event: Event) -> None:
        if isinstance(event, RequestCost) and event.id == self._ending:
            self._cost = event

    def _fail(self, generation: Generation, failed: Failed, error: str) -> None:
        self._release(generation)
        generation.request.finish(error=error)
        self._emit(generation, failed)

    def _release(self, generation: Generation) -> None:
        if generation.slot is not None:
            self._free.append(generation.slot)
            generation.slot = None
        self._running = [g for g in self._running if g is not generation]

    def _emit(self, generation: Generation, what: Token | Failed) -> None:
        if generation.cancelled:
            return
        try:
            generation.emit(what)
        except Exception:
            log.exception("request %s: nobody takes its tokens any more", generation.id)
            generation.cancelled = True
