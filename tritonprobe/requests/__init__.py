"""Requests: what users waited for.

`live` has requests and steps (`request`, `steps` and `fallbacks` are the handles, `batches` who is in a step), `stalls`
remembers the stall, `windows` whose it was, `cost` what it came to; `exposure` is the arithmetic. `engine` is this
process among those that serve the same requests, and `journal` how they tell each other. Knows the bus and the model;
nothing of Triton.
"""

from tritonprobe.requests.live import Requests
from tritonprobe.requests.request import LiveRequest
from tritonprobe.requests.steps import Step

__all__ = ["LiveRequest", "Requests", "Step"]
