"""What counts as a token, and what ends an answer, in the chunks that servers send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tritonprobe.traffic.answer import Answer, AnswerError, one_line


def answer(*chunks: dict[str, Any] | bytes) -> Answer:
    """An answer whose chunks came at 1, 2, 3, ... seconds."""
    found = Answer()
    for second, chunk in enumerate(chunks, start=1):
        found.take(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode(), float(second))
    return found


def token(text: str = "a", **more: object) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": None, **more}]}


def test_a_plain_stream():
    found = answer(token(), token(), token(), b"[DONE]")
    assert (found.first_token, found.last_token, found.end) == (1.0, 3.0, 4.0)
    assert found.tokens == 3
    assert found.tpot == 1.0
    assert found.id == "cmpl-1"


def test_one_token_has_no_time_per_token():
    assert answer(token(), b"[DONE]").tpot is None


@pytest.mark.parametrize(
    ("chunk", "tokens"),
    [
        (token("word"), 1),
        (token(""), 1),  # half a character, or a special token
        (token("", finish_reason="length"), 0),
        (token("end", finish_reason="length"), 1),
        (token("", token_ids=[7, 8]), 2),
        (token("abc", token_ids=[]), 0),
        ({"choices": []}, 0),
        ({"choices": None}, 0),
        ({}, 0),
    ],
)
def test_what_a_chunk_brings(chunk, tokens):
    found = answer(chunk)
    assert found.tokens == tokens
    assert (found.first_token is None) == (tokens == 0)


def test_usage_knows_better_than_the_chunks():
    """A server may send several tokens in one chunk."""
    found = answer(token("a b c"), token("d e"), {"choices": [], "usage": {"completion_tokens": 5}}, b"[DONE]")
    assert found.tokens == 5
    assert found.tpot == (2.0 - 1.0) / 4


@pytest.mark.parametrize(
    ("event", "kind", "detail"),
    [
        (b"hello", "protocol", "an event is not a JSON object: hello"),
        (b"[1]", "protocol", "an event is not a JSON object: [1]"),
        (b"[" * 100_000, "protocol", "an event is not a JSON object: [["),
        (b'{"error": {"message": "out of memory"}}', "server", '{"message": "out of memory"}'),
    ],
)
def test_what_is_no_completion(event, kind, detail):
    with pytest.raises(AnswerError) as raised:
        answer(event)
    assert raised.value.kind == kind
    assert detail in raised.value.detail
    assert len(raised.value.detail) < 300


def test_what_a_server_says_cannot_move_the_terminals_cursor():
    assert one_line("a\x1b[31m\nb\r\u2028c" + "x" * 500).startswith("a\\x1b[31m b cxx")
    assert one_line(b"\xff\x00ok") == "\ufffd\\x00ok"
