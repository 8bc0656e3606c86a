"""Which trace something belongs to: OpenTelemetry's current span, or a W3C `traceparent`. Knows both by their faces.

OpenTelemetry is never imported here: a program that traces has it loaded already, and any other has no span.
"""

from __future__ import annotations

import logging
import re
import sys

log = logging.getLogger("tritonprobe")

Trace = tuple[str, str]
"""A trace's id and a span's: lowercase hex, of 32 and of 16 digits."""

# https://www.w3.org/TR/trace-context/: version, trace id, parent id, flags. What a later version may append is passed
# over; this one (00) has nothing more.
_TRACEPARENT = re.compile(
    "(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_SAMPLED = 1


def current_trace() -> Trace | None:
    """The span that is current here, if there is one and it is sampled: of another, nobody could show the trace."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        context = api.get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags & _SAMPLED):
            return None
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"
    except Exception:
        # Half imported by another thread, or a span of a kind that we do not know.
        log.debug("tritonprobe: the current span could not be read", exc_info=True)
        return None


def parse_traceparent(text: str) -> Trace | None:
    """The trace and span of a `traceparent` header; None if its sender does not sample it. Raises ValueError."""
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None or (found[1] == "00" and found[5]):
        raise ValueError(f"not a W3C traceparent: {text!r:.80}")
    return (found[2], found[3]) if int(found[4], 16) & _SAMPLED else None
