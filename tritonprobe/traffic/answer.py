"""One streamed completion, as its chunks come in: when the first and the last token came, how many, what went wrong.

Knows OpenAI's chunks and no network; whoever reads the stream says when each event came.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tritonprobe.plain import plain


class AnswerError(Exception):
    """An answer that is no completion: its kind, for counting, and a line that says more."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(slots=True)
class Answer:
    """Times are on the reader's clock. ``tokens`` is what the server's usage says, else what its chunks showed."""

    status: int | None = None
    id: str | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    _shown: int = 0
    _used: int | None = None

    @property
    def tokens(self) -> int:
        return self._shown if self._used is None else self._used

    @property
    def tpot(self) -> float | None:
        """Time per token after the first; None with fewer than two tokens."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.tokens - 1)

    def take(self, event: bytes, now: float) -> None:
        """Takes the data of one event that came at `now`. Raises AnswerError."""
        if event == b"[DONE]":
            self.end = now
            return
        try:
            chunk = json.loads(event)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise AnswerError("protocol", f"an event is not a JSON object: {one_line(event)}")
        if chunk.get("error"):
            raise AnswerError("server", one_line(json.dumps(chunk["error"])))
        if self.id is None and isinstance(chunk.get("id"), str):
            self.id = one_line(chunk["id"])
        usage = chunk.get("usage")
        if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
            self._used = usage["completion_tokens"]
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._count(_tokens_of(choices[0]), now)

    def _count(self, tokens: int, now: float) -> None:
        if tokens:
            self._shown += tokens
            self.last_token = now
            if self.first_token is None:
                self.first_token = now


def _tokens_of(choice: dict[str, Any]) -> int:
    """How many tokens a chunk brings. Its ids tell, where the server sends them.

    Else text is one token, and so is an empty text that does not end the answer: a token of which no whole character
    has come yet, or a special one.
    """
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    return int(bool(choice.get("text")) or choice.get("finish_reason") is None)


def one_line(text: str | bytes, most: int = 200) -> str:
    """`text` on one line of at most about `most` characters, without anything a terminal would obey."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode("utf-8", "replace")
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else line[:most] + "..."
