"""Server-sent events, as far as completions use them: bytes in, the data of each event out. No network, no clock.

Written here because reading such a stream with `str.splitlines` cuts it at characters that a model may well say
(U+2028, form feed): in this format a line ends with CR, LF or both, and with nothing else.
"""

from __future__ import annotations

MAX_EVENT = 1024 * 1024  # bytes of one event


class StreamError(ValueError):
    """An event of more than `MAX_EVENT` bytes: whatever sends it is no stream of completions."""


class EventStream:
    """Cuts a stream into events. Comments and fields other than ``data`` are passed over, as the format demands."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes, in order."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")  # CR and LF came in two chunks; the line ended with the first
            self._after_cr = False
        buffer = self._rest + chunk
        self._after_cr = buffer.endswith(b"\r")
        *lines, self._rest = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._held + len(self._rest) > MAX_EVENT:
            raise StreamError(f"an event of more than {MAX_EVENT} bytes")
        return events

    def _line(self, line: bytes) -> bytes | None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._held += len(value) + 1
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data.clear()
        self._held = 0
        return event
