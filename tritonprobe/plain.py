"""Text that somebody else wrote, made fit for a terminal or a line of a log. Knows nothing else.

A kernel's name, a reason or an error comes from programs, files and other processes, and may hold what a terminal
obeys, a second line, or half a character that cannot be written at all. Metrics, spans and JSON keep it as it is.
"""

from __future__ import annotations

import logging
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

T = TypeVar("T")


def plain(text: str) -> str:
    """`text` on one line, with whatever is not printable spelt out: ``a\\x1b[31m\\nb``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def all_plain(value: T) -> T:
    """The same dataclass or tuple with all of its texts plain, and those of what is in it."""
    return cast(T, _all_plain(value))


def _all_plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, tuple):
        return tuple(map(_all_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _all_plain(getattr(value, field.name)) for field in fields(value)})
    return value


class PlainLog(logging.Filter):
    """Lets every record through, its message as one plain line, and so each line of a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:
            return True  # the handler says what is wrong with it
        if not message.isprintable():
            record.msg, record.args = plain(message), None
        if record.exc_info and record.exc_text is None:
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            if not all(line.isprintable() for line in lines):
                record.exc_text = "\n".join(map(plain, lines))
        return True


PLAIN_LOG = PlainLog()
