"""Text to token ids and back: one token a byte. Ids above a byte have no text of their own: ``<300>``."""

from __future__ import annotations

import codecs

EOS = 256
"""The id that ends a generation, the first that is no byte."""


def encode(text: str) -> list[int]:
    """The bytes of `text` in UTF-8, one id each. Half a surrogate pair, which JSON allows, becomes ``?``."""
    return list(text.encode(errors="replace"))


class Detokenizer:
    """Turns ids into text as they come: a character of several bytes appears with its last byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int, last: bool = False) -> str:
        """The text that `token` completes. ``last`` also gives up waiting for the rest of a character."""
        if token < EOS:
            return self._decoder.decode(bytes([token]), final=last)
        unfinished = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return f"{unfinished}<{token}>"
