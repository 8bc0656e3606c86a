"""For tests, yours and ours: record cold calls, forbid them, compile without a GPU.

with capture_cold_calls() as calls:
    kernel[grid](x, 3)
assert calls[0].reasons == ("new kernel",)

with compile_only("cuda:90"):          # Triton's real compiler and caches; launches do nothing
    kernel[grid](torch.empty(64), 3)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from types import TracebackType

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
    """A list that fills with the cold calls of watched kernels while the block runs, on every thread.

    Where nothing is watched yet, every kernel is for as long as the block lasts; if that cannot be, AssertionError.
    ``TRITONPROBE_DEVICE`` stays in use afterwards: with another device what is hot now would be cold in the next block.
    """
    with _captured("capture_cold_calls()") as calls:
        yield calls


class no_cold_calls(ContextDecorator):  # noqa: N801  # it is called as its neighbours are
    """Raises AssertionError at the end of the block if a kernel was cold in it, naming each and why.

    What is watched meanwhile is what `capture_cold_calls` would watch.
    """

    def __init__(self) -> None:
        self._open: list[tuple[ExitStack, list[ColdCall]]] = []  # several where a function it decorates calls itself

    def __enter__(self) -> None:
        with ExitStack() as stack:
            calls = stack.enter_context(_captured("no_cold_calls()"))
            self._open.append((stack.pop_all(), calls))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True  # pytest then shows the block, and none of our lines
        stack, calls = self._open.pop()
        stack.close()
        if kind is None and calls:
            raise AssertionError(
                f"{counted(len(calls), 'cold call')} where none was allowed:\n" + "\n".join(map(_line, calls))
            )


def _line(call: ColdCall) -> str:
    return plain(f"{call.kernel} {call.bucket}: {account(call)}")


@contextmanager
def _captured(who: str) -> Iterator[list[ColdCall]]:
    calls: list[ColdCall] = []

    def keep(event: Event) -> None:
        if isinstance(event, ColdCall):
            calls.append(event)

    runtime = current()
    watched = runtime.adapter.is_on
    if not watched:
        instrument()
        if not runtime.adapter.is_on:
            raise AssertionError(f"{who} would see nothing: tritonprobe is switched off (TRITONPROBE_DISABLED?)")
    try:
        with runtime.bus.subscribed(keep):
            yield calls
    finally:
        if not watched:
            stop_watching(keep_device=True)
