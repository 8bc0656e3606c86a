"""`probe`, `instrument` and `uninstrument`: what makes Triton's launches tell their story.

from tritonprobe import instrument, probe

@probe                                     # this kernel: the same object comes back
@triton.jit
def add_kernel(...): ...

@probe(bucket={"M": "pow2", "N": "exact"}) # ... with buckets of your own
@triton.autotune(configs=..., key=["N"])
@triton.jit
def matmul_kernel(...): ...

instrument()                               # every kernel of the process, those to come too
uninstrument()                             # and no trace is left
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from tritonprobe.runtime import current
from tritonprobe.shapes.buckets import parse_spec
from tritonprobe.switch import follow, unfollow

log = logging.getLogger("tritonprobe")

K = TypeVar("K")
Rules = Mapping[str, str | Sequence[int]]


@overload
def probe(kernel: K, /) -> K: ...
@overload
def probe(*, bucket: Rules | None = None) -> Callable[[K], K]: ...
def probe(kernel: Any = None, /, *, bucket: Rules | None = None) -> Any:
    """Watches one kernel and returns it as it came.

    A kernel is a ``@triton.jit``, ``@triton.heuristics`` or ``@triton.autotune`` object.
    `bucket` gives arguments a rule: ``"exact"``, ``"pow2"`` or ascending edges. Without it the autotune key's arguments
    make the bucket, else the integer arguments that are no strides. Raises TypeError on anything that is no kernel,
    BucketSpecError on a rule that cannot be used.
    """
    if kernel is None:
        if bucket is not None:
            parse_spec(bucket)  # a wrong rule is told of where it is written
        return lambda found: _probe(found, bucket)
    return _probe(kernel, bucket)


def _probe(kernel: Any, bucket: Rules | None) -> Any:
    runtime = current()
    if runtime.settings.disabled:
        return kernel
    from tritonprobe.adapter.kernels import is_kernel, jit_function

    if not is_kernel(kernel):
        name = getattr(kernel, "__qualname__", None) or type(kernel).__qualname__
        raise TypeError(
            f"@probe takes a @triton.jit, @triton.heuristics or @triton.autotune kernel, and {name} is none: put it "
            "above those decorators, or use @op(fallback=...) for a Python function with a Triton path"
        )
    spec = None if bucket is None else parse_spec(bucket, params=tuple(jit_function(kernel).arg_names))
    if follow(runtime):
        runtime.adapter.install()
    runtime.adapter.probe(kernel, spec)
    return kernel


def instrument() -> None:
    """Watches every Triton kernel of the process, present and future. Calling it twice changes nothing.

    Applies ``TRITONPROBE_DEVICE``. Raises UnsupportedTriton below Triton 3.6, SettingError on a bad setting.
    """
    runtime = current()
    if runtime.settings.disabled:
        log.info("tritonprobe: TRITONPROBE_DISABLED is set; nothing is watched")
        return
    if follow(runtime):
        runtime.watch()
    else:
        runtime.watch_later()


def uninstrument() -> None:
    """Takes every patch back, `@probe`'s too: Triton and its kernels are as if we had never been there.

    What was counted stays readable. A device from ``TRITONPROBE_DEVICE`` is given back as well.
    """
    stop_watching(keep_device=False)


def stop_watching(keep_device: bool) -> None:
    """As `uninstrument`; the settings' device goes, or stays for a program that runs on."""
    runtime = current()
    unfollow(runtime)
    runtime.watch_later(everything=False)
    runtime.unwatch(keep_device)
