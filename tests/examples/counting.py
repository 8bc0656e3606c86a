"""A model for tests of what surrounds one: it counts upwards, can be held up, and fails when asked to."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from examples.llm_server.model import Piece

WAIT = 10.0
BROKEN = 666


class Counting:
    """The next token is the last one plus one. A step waits for `gate`; a prompt that holds BROKEN makes it raise."""

    def __init__(self) -> None:
        self.steps: list[list[Piece]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def next_tokens(self, pieces: Sequence[Piece]) -> list[int]:
        self.steps.append(list(pieces))
        self.entered.release()
        assert self.gate.wait(WAIT)
        if any(BROKEN in piece.tokens for piece in pieces):
            raise ArithmeticError("broken on purpose\nand more that is of no use to a client")
        return [piece.tokens[-1] + 1 for piece in pieces]
