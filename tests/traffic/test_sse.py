"""An event stream says the same however the network cuts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonprobe.traffic.sse import MAX_EVENT, EventStream, StreamError


def events(*chunks: bytes) -> list[bytes]:
    stream = EventStream()
    return [event for chunk in chunks for event in stream.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b": ping\n\ndata: one\n\n", [b"one"]),
        (b"event: x\nid: 1\nretry: 5\ndata: one\n\n", [b"one"]),
        (b"\n\n\n", []),
        (b"data: never finished\n", []),
        ("data: a\u2028b\x0cc\x85d\n\n".encode(), ["a\u2028b\x0cc\x85d".encode()]),
    ],
)
def test_events(stream, expected):
    assert events(stream) == expected
    assert events(*(bytes([byte]) for byte in stream)) == expected


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)), st.data())
def test_any_cut_of_any_text_gives_the_same_events(texts, data):
    stream = b"".join(
        f"data: {text}".encode() + ending * 2
        for text in texts
        for ending in [data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events(*chunks) == [text.encode() for text in texts]


@pytest.mark.parametrize("endless", [b"x" * 4096, b"data: " + b"x" * 4096 + b"\n", b"data\n" * 1001])
def test_an_event_without_an_end_is_given_up(endless):
    with pytest.raises(StreamError, match=f"an event of more than {MAX_EVENT} bytes"):
        events(*[endless] * (MAX_EVENT // 1000 + 1))
