"""One generation as the engine holds it, and what it hands back. Knows neither HTTP nor tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from examples.llm_server.model import Piece
from tritonprobe.model import RequestCost
from tritonprobe.requests import LiveRequest

FinishReason = Literal["length", "stop"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. Temperature 0 is greedy; the same seed draws the same tokens again."""

    max_tokens: int = 16
    temperature: float = 0.0
    ignore_eos: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One token. The last one of a generation says why it is the last, and what the request stood behind."""

    id: int
    finish_reason: FinishReason | None = None
    cost: RequestCost | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a generation that did not finish. ``status`` is the HTTP status that says so."""

    message: str
    status: int


Emit = Callable[[Token | Failed], None]
"""Takes what a generation hands back, in the engine's thread; must return at once."""


@dataclass(slots=True, eq=False)
class Generation:
    """A prompt on its way to its last token. The engine's thread changes it; `cancelled` may be set by any."""

    id: str
    prompt: list[int]
    sampling: Sampling
    emit: Emit
    request: LiveRequest
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    cancelled: bool = False
    _draws: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._draws = random.Random(self.sampling.seed)  # noqa: S311  # repeatable is what it has to be

    def piece(self) -> Piece:
        """What the next step runs: the whole prompt, or the token that came last."""
        assert self.slot is not None, "a generation runs in a slot"
        tokens = self.tokens[-1:] or self.prompt
        position = len(self.prompt) + len(self.tokens) - 1 if self.tokens else 0
        return Piece(self.slot, tokens, position, self.sampling.temperature, self._draws.random())

    def finish_reason(self, eos: int) -> FinishReason | None:
        """Why the token that came last is the last one; None if it isn't."""
        if self.tokens[-1] == eos and not self.sampling.ignore_eos:
            return "stop"
        return "length" if len(self.tokens) == self.sampling.max_tokens else None
