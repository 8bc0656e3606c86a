"""`bench`: how long the kernels of a function run on the GPU. For people, and as an autotuner's ``do_bench``.

    @triton.autotune(configs=..., key=["M", "N", "K"], do_bench=tritonprobe.gpu.bench)

Between two calls of the function goes a marker kernel of ours, so that each record is known to be of one call: their
durations add up to the call's time. What the host does in between is not in it, which is why winners of short kernels
stop being noise; nor are the driver's own copies and fills, for they are no kernels. What other threads launch in
between is in it. As Triton's own benchmark does, it overwrites the L2 cache before each call.

The time of a short kernel in one series of such calls, however long, is off by some nanoseconds, and in the next series
by others; calls in a row between two series are what makes the difference anew. So several series are measured. (Seen
on an H200; the hardware's reason is not known to us.)
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tritonprobe.gpu import times as windows
from tritonprobe.gpu import torch_graphs
from tritonprobe.gpu.quantiles import quantile, require_quantile
from tritonprobe.seen import NOTHING_RUNS

if TYPE_CHECKING:
    from tritonprobe.gpu.cupti import Cupti
    from tritonprobe.gpu.driver import Driver, Marker
    from tritonprobe.gpu.records import Records

log = logging.getLogger("tritonprobe")

CACHE_BYTES = 256 << 20
"""More than any GPU's L2 cache."""
MOST_CALLS = 5000
SERIES = 10
COLLECT_SECONDS = 30.0
SETTLE_SECONDS = 2.0
"""For what is still to come when a call has raised."""

ReturnMode = Literal["mean", "median", "min", "max", "all"]
_QUANTILES = {"min": 0.0, "median": 0.5, "max": 1.0}
_said: list[str] = []


class GpuTimingError(RuntimeError):
    """Why GPU time cannot be measured here and now."""


def bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> float | list[float]:
    """The GPU time of one call of `fn`, in milliseconds; its arguments are those of ``triton.testing.do_bench``.

    `warmup` and `rep` are milliseconds to spend. Quantiles, the median too, are finer than the clock's ticks (see
    `quantiles`). Where there is no CUPTI, or another profiler has it, or a call launches no kernel, times are taken by
    events, with one line that says why; on the compile-only device nothing runs, and takes 0. Raises ValueError on an
    argument that says nothing, GpuTimingError where not even events tell a time, and what `fn` raises.
    """
    if return_mode not in ("mean", "median", "min", "max", "all"):
        raise ValueError(f"return_mode={return_mode!r}: expected mean, median, min, max or all")
    for name, milliseconds in (("warmup", warmup), ("rep", rep)):
        if not 0 <= milliseconds < math.inf:
            raise ValueError(f"{name}={milliseconds!r}: expected milliseconds, 0 or more")
    wanted = None if quantiles is None else list(quantiles)
    for q in wanted or ():
        require_quantile(q)
    tensors = () if grad_to_none is None else tuple(grad_to_none)
    times = _times(fn, warmup, rep, tensors)
    if return_mode == "all" and wanted is None:
        return times
    times.sort()
    if wanted is not None:
        found = [quantile(times, q) for q in wanted]
        return found[0] if len(found) == 1 else found
    return statistics.fmean(times) if return_mode == "mean" else quantile(times, _QUANTILES[return_mode])


def _times(fn: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any]) -> list[float]:
    """Milliseconds of each of many calls, by whatever tells them. Raises GpuTimingError if nothing does."""
    if any(nothing_runs() for nothing_runs in NOTHING_RUNS):
        fn()  # compiles
        return [0.0]
    _require_device()
    try:
        return gpu_times(fn, warmup, rep, grad_to_none)
    except GpuTimingError as error:
        if str(error) not in _said:
            _said.append(str(error))
            log.warning("tritonprobe: gpu.bench times by events, which see the host, too: %s", error)
        return _by_events(fn, warmup, rep, grad_to_none)


def gpu_times(fn: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any]) -> list[float]:
    """Milliseconds of GPU time of each of many calls. Raises GpuTimingError, and what `fn` raises."""
    cupti, driver, marker = _tools()
    import torch

    from tritonprobe.gpu.cupti import CuptiError
    from tritonprobe.gpu.driver import DriverError
    from tritonprobe.gpu.records import RecordError

    try:
        fn()
        torch.cuda.synchronize()
        with cupti.use:  # from here on: another benchmark's warm-up would be in our records
            cache = torch.empty(CACHE_BYTES // 4, dtype=torch.int32, device="cuda")
            estimate = _estimate(fn, cache)
            warm = _calls(warmup, estimate)
            for _ in range(warm):
                fn()
            calls = min(_calls(rep, estimate), MOST_CALLS)
            _clear(cupti)
            cupti.enable()
            try:
                for series in range(SERIES):
                    # One at least: of a graph's first replay the records are not to be trusted.
                    for _ in range(max(min(warm, calls) // SERIES, series == 0)):
                        fn()
                    torch.cuda.synchronize()
                    _marked(fn, len(range(series, calls, SERIES)), marker, cache, grad_to_none)
            finally:
                cupti.disable()
            torch.cuda.synchronize()
            if not cupti.collect(COLLECT_SECONDS):
                raise GpuTimingError("CUPTI did not give all records back")
            lost = cupti.dropped()
            times = _between_marks(cupti.records())
    except (CuptiError, DriverError, RecordError) as error:
        raise GpuTimingError(str(error)) from None
    finally:
        _rest(cupti, driver)
    if lost or len(times) != calls:
        log.debug("tritonprobe: %d calls left the records of %d, and %d were dropped", calls, len(times), lost)
        raise GpuTimingError("not every call left its records")
    return times


def _marked(fn: Callable[[], Any], calls: int, marker: Marker, cache: Any, grad_to_none: Sequence[Any]) -> None:
    """Calls `fn` so often from a cold cache, each call between two marks."""
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(calls):
        for tensor in grad_to_none:
            tensor.grad = None
        cache.zero_()
        marker.launch(1, stream)
        fn()
        marker.launch(2, stream)


def _require_device() -> None:
    """Raises GpuTimingError where there is no time to be had, by events neither."""
    import torch

    if not torch.cuda.is_available():
        raise GpuTimingError("gpu.bench: torch sees no CUDA device")
    if torch.cuda.is_current_stream_capturing():
        raise GpuTimingError("gpu.bench: the current stream is capturing a graph, and runs nothing until that is done")


def _tools() -> tuple[Cupti, Driver, Marker]:
    """CUPTI, the driver and a marker kernel in the current device's context. Raises GpuTimingError."""
    import torch

    if getattr(torch.version, "hip", None):
        raise GpuTimingError("AMD: CUPTI is NVIDIA's")
    # The first is this thread's, the second everybody's; of a profiler that is yet to start only windows know.
    if torch._C._autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        raise GpuTimingError("torch.profiler is at work")
    if windows.is_anything_under_way():
        raise GpuTimingError("a capture of a graph or another profiler is under way")
    try:
        from tritonprobe.gpu.cupti import CuptiError, the_cupti
        from tritonprobe.gpu.cupti_clock import marker_of, proton_holds
        from tritonprobe.gpu.driver import Driver, DriverError

        torch.empty(1, device="cuda")
        try:
            cupti, driver = the_cupti(), Driver()
            if proton_holds(cupti):
                raise GpuTimingError("Proton has subscribed to CUPTI")
            try:
                return cupti, driver, marker_of(cupti, driver, torch.cuda.current_device())
            except BaseException:  # the self-test brought it in
                _rest(cupti, driver)
                raise
        except (CuptiError, DriverError, OSError) as error:
            raise GpuTimingError(str(error)) from None
    except ImportError as error:
        raise GpuTimingError(f"{error.name} is not installed") from None


def _clear(cupti: Cupti) -> None:
    """Callbacks of ours, and no record of anything before. Raises CuptiError and GpuTimingError."""
    if cupti.left and not cupti.attached and torch_graphs.are_there_any():
        raise GpuTimingError("this process has CUDA graphs, and CUPTI has left it once: a replay might fail")
    cupti.attach()
    cupti.flush()
    cupti.discard()
    cupti.dropped()


def _rest(cupti: Cupti, driver: Driver) -> None:
    """Nothing is outstanding, and CUPTI is out of the process again where it may leave it."""
    from tritonprobe.gpu.cupti import CuptiError

    with cupti.use:
        try:
            if cupti.outstanding:  # a call raised
                cupti.collect(SETTLE_SECONDS)
            cupti.discard()
            if windows.may_cupti_leave() and not torch_graphs.are_there_any():
                cupti.leave(driver)
        except CuptiError:
            log.debug("tritonprobe: CUPTI stays in the process", exc_info=True)


def _between_marks(records: Records) -> list[float]:
    """For each pair of markers, the time of the kernels between them, in milliseconds. Raises GpuTimingError."""
    import numpy as np

    from tritonprobe.gpu.cupti import text_at
    from tritonprobe.gpu.driver import MARK
    from tritonprobe.gpu.records import grid_code

    if np.any(records.end == 0):
        raise GpuTimingError("a kernel that other threads launched did not end")
    addresses = np.unique(records.name).tolist()
    marks = [address for address in addresses if text_at(address) == MARK]
    is_mark = np.isin(records.name, np.array(marks, np.uint64))
    begin = np.flatnonzero(is_mark & (records.grid == grid_code(1, 1, 1)))
    end = np.flatnonzero(is_mark & (records.grid == grid_code(2, 1, 1)))
    if len(begin) != len(end) or np.any(begin >= end) or np.any(begin[1:] <= end[:-1]):
        log.debug("tritonprobe: by their marks %d calls began and %d ended", len(begin), len(end))
        raise GpuTimingError("not every call left its records")
    if len(begin) and np.all(end - begin == 1):
        raise GpuTimingError("the calls launched no kernel; copies and fills by the driver leave no record of one")
    summed = np.concatenate(([0], np.cumsum(records.end - records.start)))
    return [float(ns) / 1e6 for ns in summed[end] - summed[begin + 1]]


def _by_events(fn: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any]) -> list[float]:
    """The same by pairs of events: an upper bound for short kernels."""
    import torch

    fn()
    torch.cuda.synchronize()
    cache = torch.empty(CACHE_BYTES // 4, dtype=torch.int32, device="cuda")
    estimate = _estimate(fn, cache)
    for _ in range(_calls(warmup, estimate)):
        fn()
    event: Any = torch.cuda.Event
    pairs = []
    for _ in range(_calls(rep, estimate)):
        for tensor in grad_to_none:
            tensor.grad = None
        cache.zero_()
        pair = (event(enable_timing=True), event(enable_timing=True))
        pair[0].record()
        fn()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return [float(first.elapsed_time(second)) for first, second in pairs]


def _estimate(fn: Callable[[], Any], cache: Any) -> float:
    """Milliseconds of a call with what goes around it."""
    import torch

    start = time.perf_counter()
    for _ in range(5):
        cache.zero_()
        fn()
    torch.cuda.synchronize()
    return max((time.perf_counter() - start) / 5 * 1e3, 1e-3)


def _calls(milliseconds: float, estimate: float) -> int:
    return max(1, int(milliseconds / estimate))
