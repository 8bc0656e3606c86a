"""A small, hand-made history to tell stories from: two requests, one of which waited for the other's compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tritonprobe.ledger import Ledger, MemoryLedger, schema
from tritonprobe.model import ColdCall, Exposure, RequestCost

SECOND = 1_000_000_000
READY = 1_700_000_000 * SECOND
MATMUL = "shop.kernels.matmul_kernel"
SOFTMAX = "shop.kernels.softmax_kernel"


@dataclass
class History:
    """What a runtime offers to a story."""

    device: str = "compile-only:cuda:90"
    ledger: Ledger = field(default_factory=MemoryLedger)
    cold_calls: Sequence[ColdCall] = ()
    requests: Sequence[RequestCost] = ()
    ready_unix_ns: int | None = READY


def cold_call(
    kernel: str = MATMUL, start: float = 0.0, seconds: float = 1.0, reasons: tuple[str, ...] = ("new kernel",), **more
) -> ColdCall:
    """A compile that began `start` seconds after ready and took `seconds`."""
    begin, wall = int(start * SECOND), int(seconds * SECOND)
    defaults = {
        "bucket": "M<=16",
        "tier": "compile",
        "phases": (("frontend", wall // 4), ("cubin", wall - wall // 4)),
        "lookups": (),
        "after_ready": start >= 0,
    }
    return ColdCall(
        kernel=kernel,
        start_ns=begin,
        end_ns=begin + wall,
        unix_ns=READY + begin,
        reasons=reasons,
        **{**defaults, **more},
    )


def request(
    name: str = "r", start: float = 0.0, ttft: float | None = 0.1, end: float | None = None, tokens: int = 5, **more
) -> RequestCost:
    """A request that arrived `start` seconds after ready; later tokens came 10 ms apart unless `end` says."""
    begin = int(start * SECOND)
    first = None if ttft is None else begin + int(ttft * SECOND)
    last = begin if first is None else first + (tokens - 1) * SECOND // 100
    return RequestCost(
        id=name,
        model="m",
        start_ns=begin,
        first_token_ns=first,
        end_ns=last if end is None else int(end * SECOND),
        unix_ns=READY + begin,
        tokens=tokens if first is not None else 0,
        **more,
    )


def busy() -> History:
    """Two requests; the second queued behind the compile of the first one's matmul. Then a softmax came from disk."""
    ledger = MemoryLedger()
    for kernel, launches, found in ((MATMUL, 40, "compile"), (SOFTMAX, 41, "disk")):
        ledger.add(schema.LAUNCHES, (kernel, "M<=16"), launches)
        ledger.add(schema.LOOKUPS, (kernel, "M<=16", found), 1)
        ledger.add(schema.LOOKUPS, (kernel, "M<=16", "memory"), launches - 1)
        ledger.add(schema.AFTER_READY, (found,), 1)
    for kernel, phase, seconds in (
        (MATMUL, "cubin", 2.0),
        (MATMUL, "frontend", 1.0),
        (SOFTMAX, "cache_read", 0.01),
        (SOFTMAX, "brand_new_stage", 0.02),
    ):
        ledger.add(schema.COLD_SECONDS, (kernel, phase, "0"), seconds)
    ledger.observe(schema.COLD_CALL_SECONDS, ("compile",), 3.0)
    ledger.observe(schema.COLD_CALL_SECONDS, ("disk",), 0.03)
    ledger.add(schema.OP_CALLS, ("shop.matmul", "M<=16", "triton"), 40)
    ledger.add(schema.OP_CALLS, ("shop.matmul", "M<=16", "fallback"), 2)
    ledger.add(schema.FALLBACKS, ("shop.matmul", "M<=16", "unsupported_dtype"), 2)
    ledger.set(schema.INFO, ("0.1", "3.6.0", "compile-only:cuda:90", "rewrite"), 1)
    return History(
        ledger=ledger,
        cold_calls=(
            cold_call(SOFTMAX, start=3.2, seconds=0.03, tier="disk"),
            cold_call(MATMUL, start=0.1, seconds=3.0, reasons=("n: %16 -> ==1", "constexpr S: 1024 -> 1025")),
        ),
        requests=(
            request("first", start=0.0, ttft=3.15, before=Exposure(in_batch_ns=3 * SECOND)),
            request("second", start=1.0, ttft=2.2, before=Exposure(queued_ns=2_100_000_000)),
        ),
    )
