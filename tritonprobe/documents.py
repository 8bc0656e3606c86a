"""JSON that others wrote, read with distrust: whatever is wrong with it is one kind of error. Knows nothing else."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MAX_DEPTH = 100
"""Lists and objects inside one another. More would end whoever walks through them, or writes them again."""


def read_json(found: str | bytes) -> Any:
    """Raises ValueError with a few words, whatever is wrong: with the text, a number in it, or its depth."""
    try:
        value = json.loads(found, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _NumberError):
        raise
    except ValueError:  # Python converts no longer ones
        raise ValueError("a number of thousands of digits") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not level:
            return value
    raise ValueError("nested too deeply")


class _NumberError(ValueError):
    """A word in the place of a number, or one that Python has no room for."""


def _no_number(word: str) -> NoReturn:
    raise _NumberError(f"{word} is no number that JSON knows")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # it could neither be made an integer nor be written again
        raise _NumberError("a number beyond all bounds")
    return number


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
