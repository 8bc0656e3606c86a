"""What a client of HTTP would rather have: the header Accept (RFC 9110, 12.5.1), for a server of few types."""

from __future__ import annotations

from collections.abc import Sequence


def preferred(accept: str | None, among: Sequence[str]) -> str | None:
    """Which of `among` the client names with the greatest weight, the one it names first if several have that.

    Ranges such as ``*/*`` name none, and a weight of 0 takes a name back: None if nothing is left.
    """
    best, most = None, 0.0
    for part in (accept or "").split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = _weight(parameters)
        if kind in among and weight > most:
            best, most = kind, weight
    return best


def _weight(parameters: Sequence[str]) -> float:
    """``q=0.5``: from 0 to 1, and 1 unless said; what is no such number says nothing."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 1.0
            return weight if 0 <= weight <= 1 else 1.0
    return 1.0
