"""Requests: what users waited for.

`live` has requests and steps, `stalls` remembers the stall, `exposure` is the arithmetic. Knows the bus and the model;
nothing of Triton.
"""

from tritonprobe.requests.live import LiveRequest, Requests, Step

__all__ = ["LiveRequest", "Requests", "Step"]
