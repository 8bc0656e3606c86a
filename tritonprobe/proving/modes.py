"""What is compared: tritonprobe as its users switch it on, and the other ways to watch launches.

The others touch Triton and torch the way tools do: `JITFunction.run`, the public hooks, Proton, torch.profiler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonprobe.proving.rounds import Launch, StateError, UnavailableError, Way

Shapes = Mapping[str, tuple[Any, tuple[int, ...]]]
"""By name: a kernel, and the positions of the arguments that make its shape."""


class Ours:
    """`instrument()` and `uninstrument()`, checked by what was counted and by what is in place."""

    def __init__(self, shapes: Shapes) -> None:
        from triton.runtime.jit import JITFunction

        self._shapes = shapes
        self._class = JITFunction
        self._run = JITFunction.run
        self._binders = self._in_place()
        self._counted = self._counts()
        self.counting = "none"

    def on(self) -> None:
        from tritonprobe.probe import instrument

        instrument()

    def off(self) -> None:
        from tritonprobe.probe import uninstrument

        uninstrument()

    def check(self, on: bool, launched: Mapping[str, int]) -> None:
        from tritonprobe.runtime import current

        before, self._counted = self._counted, self._counts()
        counted = {kernel: self._counted[kernel] - before[kernel] for kernel in self._shapes}
        expected = dict(launched) if on else dict.fromkeys(self._shapes, 0)
        if counted != expected:
            raise StateError(f"tritonprobe counted {counted} launches where {expected} were expected")
        if on:
            self.counting = current().adapter.counting
        elif self._class.run is not self._run or self._in_place() != self._binders:
            raise StateError("uninstrument() left something of tritonprobe in Triton")

    def _in_place(self) -> list[Any]:
        """Each kernel's binder: the function that ours takes the place of."""
        return [entry[4] for kernel, _ in self._shapes.values() for entry in kernel.device_caches.values()]

    def _counts(self) -> dict[str, int]:
        from tritonprobe.adapter.kernels import name_of
        from tritonprobe.ledger import Sample
        from tritonprobe.ledger.schema import LAUNCHES
        from tritonprobe.runtime import current

        names = {name_of(kernel): name for name, (kernel, _) in self._shapes.items()}
        counts = dict.fromkeys(self._shapes, 0)
        for family in current().ledger.collect():
            if family.metric.name == LAUNCHES.name:
                for sample in family.samples:
                    if isinstance(sample, Sample) and sample.labels[0] in names:
                        counts[names[sample.labels[0]]] += round(sample.value)
        return counts

    def close(self) -> None:
        """Nothing is left: each `check` of the state without it made sure."""


class _Counting:
    """Counts by kernel and shape, as a tool's author would write it; the dearer part is where it is called from."""

    def __init__(self, shapes: Shapes) -> None:
        self._cells: dict[str, dict[Any, list[int]]] = {name: {} for name in shapes}
        self._before = dict.fromkeys(shapes, 0)

    def counted(self) -> dict[str, int]:
        """Launches by kernel since the last time this was asked."""
        now = {name: sum(cell[0] for cell in cells.values()) for name, cells in self._cells.items()}
        since = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return since

    def check(self, on: bool, launched: Mapping[str, int]) -> None:
        counted = self.counted()
        expected = dict(launched) if on else dict.fromkeys(counted, 0)
        if counted != expected:
            raise StateError(f"{type(self).__name__} counted {counted} launches where {expected} were expected")

    def close(self) -> None:
        """Nothing is left."""


class Wrapper(_Counting):
    """A wrapper around `JITFunction.run`, for every kernel of the process."""

    def __init__(self, shapes: Shapes) -> None:
        from triton.runtime.jit import JITFunction

        super().__init__(shapes)
        self._class = JITFunction
        original = self._original = JITFunction.run
        counters = {
            id(kernel): (operator.itemgetter(*positions), self._cells[name])
            for name, (kernel, positions) in shapes.items()
        }

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            shape_of, cells = counters[id(self)]
            shape = shape_of(args)
            try:
                cells[shape][0] += 1
            except KeyError:
                cells[shape] = [1]
            return original(self, *args, **kwargs)

        self._wrapped = run

    def on(self) -> None:
        self._class.run = self._wrapped

    def off(self) -> None:
        self._class.run = self._original


class PreRunHook(_Counting):
    """Triton's public `pre_run_hook`, on each kernel."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__(shapes)
        self._hooks = [
            (kernel, _hook(operator.itemgetter(*positions), self._cells[name]))
            for name, (kernel, positions) in shapes.items()
        ]

    def on(self) -> None:
        for kernel, hook in self._hooks:
            kernel.add_pre_run_hook(hook)

    def off(self) -> None:
        for kernel, hook in self._hooks:
            kernel.pre_run_hooks.remove(hook)


def _hook(shape_of: Callable[[Any], Any], cells: dict[Any, list[int]]) -> Callable[..., None]:
    def count(*args: Any, **kwargs: Any) -> None:  # noqa: ARG001  # a hook is called with all that the kernel is
        shape = shape_of(args)
        try:
            cells[shape][0] += 1
        except KeyError:
            cells[shape] = [1]

    return count


class LaunchHooks:
    """Triton's launch hooks, with functions that do nothing."""

    def __init__(self, launch: Launch) -> None:
        from triton import knobs

        self._chains = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
        called: list[object] = []
        for chain in self._chains:
            chain.add(called.append)
        launch()
        for chain in self._chains:
            chain.remove(called.append)
        if len(called) != len(self._chains):
            raise UnavailableError("the launcher that calls them does not run on this device")

    def on(self) -> None:
        for chain in self._chains:
            chain.add(_nothing)

    def off(self) -> None:
        for chain in self._chains:
            chain.remove(_nothing)

    def check(self, on: bool, launched: Mapping[str, int]) -> None:  # noqa: ARG002  # they count nothing
        if any((_nothing in chain.calls) is not on for chain in self._chains):
            raise StateError("Triton's launch hooks are not as they were set")

    def close(self) -> None:
        """Nothing is left."""


def _nothing(metadata: object) -> None:
    """A launch hook."""


class Proton:
    """Triton's profiler, one session that is activated and deactivated; `hook` is None or ``triton``."""

    def __init__(self, shapes: Shapes, folder: Path, hook: str | None) -> None:
        import triton.profiler

        self._kernels = [kernel.fn.__name__ for kernel, _ in shapes.values()]
        self._proton = triton.profiler
        self._file = folder / "proton.hatchet"
        self._session = triton.profiler.start(str(self._file.with_suffix("")), hook=hook)
        self.off()

    def on(self) -> None:
        self._proton.activate(self._session)

    def off(self) -> None:
        self._proton.deactivate(self._session)

    def check(self, on: bool, launched: Mapping[str, int]) -> None:
        """A session cannot be asked; `close` reads what it wrote."""

    def close(self) -> None:
        self._proton.finalize(self._session)
        text = self._file.read_text()
        missing = [name for name in self._kernels if name not in text]
        if missing:
            raise StateError(f"Proton's file names no {', '.join(missing)}")


class TorchProfiler:
    """torch.profiler with CPU and CUDA activities, a new profile for each round."""

    def __init__(self, shapes: Shapes, launch: Launch) -> None:
        names = [kernel.fn.__name__ for kernel, _ in shapes.values()]
        self.on()
        launch()
        self.off()
        if not any(name in event.key for event in self._profile.key_averages() for name in names):
            raise UnavailableError("it recorded no kernel on this device")

    def on(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile: Any = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.__enter__()  # type: ignore[no-untyped-call]  # torch left it untyped

    def off(self) -> None:
        self._profile.__exit__(None, None, None)

    def check(self, on: bool, launched: Mapping[str, int]) -> None:  # noqa: ARG002  # reading a profile takes seconds
        from torch._C._autograd import _profiler_enabled

        if _profiler_enabled() is not on:
            raise StateError("torch.profiler is not as it was set")

    def close(self) -> None:
        """Nothing is left."""


WAYS: Mapping[str, Callable[[Shapes, Launch, Path], Way]] = {
    "ours": lambda shapes, _, __: Ours(shapes),
    "wrapper": lambda shapes, _, __: Wrapper(shapes),
    "pre_run_hook": lambda shapes, _, __: PreRunHook(shapes),
    "launch_hooks": lambda _, launch, __: LaunchHooks(launch),
    "proton": lambda shapes, _, folder: Proton(shapes, folder, None),
    "proton_hook": lambda shapes, _, folder: Proton(shapes, folder, "triton"),
    "torch_profiler": lambda shapes, launch, _: TorchProfiler(shapes, launch),
}
