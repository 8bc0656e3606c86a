"""An op's calls in C (`op_call.c`), where that can be built: what the C needs of torch and Triton, found here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tritonprobe import native
from tritonprobe.adapter.device import drivers, is_compile_only
from tritonprobe.adapter.ends import Ends

SOURCE = Path(__file__).with_name("op_call.c")


def op_call(
    ends: Ends,
    function: Callable[..., Any],
    *,
    fallback: Callable[..., Any],
    supports: Callable[..., Any] | None,
    slow: Callable[..., Any],
    namespace: dict[str, Any],
    has_bucket: bool,
    remember_supports: bool,
    limit: int,
) -> Any | None:
    """What calls `function` as `slow` does, but in C if it knows such a call; None where there is no compiler.

    ``counts_in(runtime, places)`` begins: calls are counted while `runtime` is ``_current`` in `namespace`. `places`
    are a runtime's own, in the order of `op_call.c`. ``remember(places, where, args, kwargs)`` makes a call known; at
    most `limit` of them are, and then all are forgotten. ``stand_in_for(call, place)`` takes the place of a Python
    function that only hands over, if this Python can do that.
    """
    module = _module()
    if module is None or ends.for_ops is None:
        return None
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.Tensor
    return module.Op(
        ends.for_ops,
        function,
        fallback,
        supports,
        slow,
        namespace,
        vars(drivers()),
        is_compile_only,
        None if torch is None else vars(torch.compiler),
        tensor,
        None if torch is None else torch.nn.Parameter,
        None if torch is None else torch.dtype,
        getattr(tensor, "__dlpack_c_exchange_api__", None),  # since torch 2.11
        has_bucket or remember_supports,
        remember_supports,
        limit,
    )


@functools.cache  # each op asks, and a compiler that cannot do it would be called each time
def _module() -> Any | None:
    return native.load(SOURCE)
