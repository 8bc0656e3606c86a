"""For tests, yours and ours: record cold calls, forbid them, compile without a GPU.

with capture_cold_calls() as calls:
    kernel[grid](x, 3)
assert calls[0].reasons == ("new kernel",)

with compile_only("cuda:90"):          # Triton's real compiler and caches; launches do nothing
    kernel[grid](torch.empty(64), 3)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tritonprobe.adapter.device import compile_only
from tritonprobe.incidents import account
from tritonprobe.model import ColdCall, Event
from tritonprobe.plain import plain
from tritonprobe.probe import instrument, stop_watching
from tritonprobe.runtime import current
from tritonprobe.wording import counted

__all__ = ["capture_cold_calls", "compile_only", "no_cold_calls"]


@contextmanager
def capture_cold_calls() -> Iterator[list[ColdCall]]:
    """A list that fills with the cold calls of watched kernels while the block runs, on every thread."""
    calls: list[ColdCall] = []

    def keep(event: Event) -> None:
        if isinstance(event, ColdCall):
            calls.append(event)

    with current().bus.subscribed(keep):
        yield calls


@contextmanager
def no_cold_calls() -> Iterator[None]:
    """Raises AssertionError at the end of the block if a kernel was cold in it, naming each and why.

    Where nothing is watched yet, every kernel is for as long as the block lasts; if that cannot be, it raises at once.
    ``TRITONPROBE_DEVICE`` stays in use afterwards: with another device what is hot now would be cold in the next block.
    """
    adapter = current().adapter
    watched = adapter.is_on
    if not watched:
        instrument()
        if not adapter.is_on:
            raise AssertionError(
                "no_cold_calls() would see nothing: tritonprobe is switched off (TRITONPROBE_DISABLED?)"
            )
    try:
        with capture_cold_calls() as calls:
            yield
    finally:
        if not watched:
            stop_watching(keep_device=True)
    if calls:
        lines = [f"{call.kernel} {call.bucket}: {account(call)}" for call in calls]
        raise AssertionError(
            f"{counted(len(calls), 'cold call')} where none was allowed:\n" + "\n".join(map(plain, lines))
        )
