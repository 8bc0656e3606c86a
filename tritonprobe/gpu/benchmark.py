"""`bench`: how long the kernels of a function run on the GPU. For people, and as an autotuner's ``do_bench``.

    @triton.autotune(configs=..., key=["M", "N", "K"], do_bench=tritonprobe.gpu.bench)

Between two calls of the function goes a marker kernel of ours, so that each record is known to be of one call: their
durations add up to the call's time. What the host does in between is not in it, which is why winners of short kernels
stop being noise. As Triton's own benchmark does, it overwrites the L2 cache before each call.

The time of a short kernel in one series of such calls, however long, is off by some nanoseconds, and in the next series
by others; calls in a row between two series are what makes the difference anew. So several series are measured. (Found
on an H200, where the scatter of ten benchmarks fell by half; the hardware's reason is not known to us.)
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tritonprobe.gpu import torch_graphs
from tritonprobe.gpu.quantiles import quantile

if TYPE_CHECKING:
    from tritonprobe.gpu.cupti import Cupti
    from tritonprobe.gpu.driver import Driver, Marker

log = logging.getLogger("tritonprobe")

CACHE_BYTES = 256 << 20
"""More than any GPU's L2 cache."""
MOST_CALLS = 5000
SERIES = 10
COLLECT_SECONDS = 30.0

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
    `quantiles`). Where there is no CUPTI, or another profiler has it, times are taken
    by events, with one line that says why. Raises ValueError on an unknown `return_mode`.
    """
    if return_mode not in ("mean", "median", "min", "max", "all"):
        raise ValueError(f"return_mode={return_mode!r}: expected mean, median, min, max or all")
    try:
        times = gpu_times(fn, warmup, rep, grad_to_none)
    except GpuTimingError as error:
        if str(error) not in _said:
            _said.append(str(error))
            log.warning("tritonprobe: gpu.bench times by events, which see the host, too: %s", error)
        times = _by_events(fn, warmup, rep, grad_to_none)
    if return_mode == "all" and quantiles is None:
        return times
    times.sort()
    if quantiles is not None:
        found = [quantile(times, q) for q in quantiles]
        return found[0] if len(found) == 1 else found
    return statistics.fmean(times) if return_mode == "mean" else quantile(times, _QUANTILES[return_mode])


def gpu_times(
    fn: Callable[[], Any], warmup: float = 25, rep: float = 100, grad_to_none: Sequence[Any] | None = None
) -> list[float]:
    """Milliseconds of GPU time of each of many calls. Raises GpuTimingError."""
    import torch

    from tritonprobe.gpu.cupti import CuptiError

    cupti, driver, marker = _tools()
    fn()
    torch.cuda.synchronize()
    cache = torch.empty(CACHE_BYTES // 4, dtype=torch.int32, device="cuda")
    estimate = _estimate(fn, cache)
    warm = _calls(warmup, estimate)
    for _ in range(warm):
        fn()
    calls = min(_calls(rep, estimate), MOST_CALLS)
    graphs = torch_graphs.are_there_any()
    with cupti.use:
        try:
            _clear(cupti, graphs)
            cupti.enable()
            try:
                for series in range(SERIES):
                    for _ in range(min(warm, calls) // SERIES):
                        fn()
                    torch.cuda.synchronize()
                    _marked(fn, len(range(series, calls, SERIES)), marker, cache, grad_to_none)
            finally:
                cupti.disable()
            torch.cuda.synchronize()
            if not cupti.collect(COLLECT_SECONDS):
                raise GpuTimingError("CUPTI did not give all records back")
            lost = cupti.dropped()
            times = _between_marks(cupti)
        except CuptiError as error:
            raise GpuTimingError(str(error)) from None
        finally:
            if not graphs:
                cupti.leave(driver)
    if lost or len(times) != calls:
        raise GpuTimingError(f"{calls} calls left the records of {len(times)}, and {lost} were dropped")
    return times


def _marked(fn: Callable[[], Any], calls: int, marker: Marker, cache: Any, grad_to_none: Sequence[Any] | None) -> None:
    """Calls `fn` so often from a cold cache, each call between two marks."""
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    for _ in range(calls):
        for tensor in grad_to_none or ():
            tensor.grad = None
        cache.zero_()
        marker.launch(1, stream)
        fn()
        marker.launch(2, stream)


def _tools() -> tuple[Cupti, Driver, Marker]:
    """CUPTI, the driver and a marker kernel in the current device's context. Raises GpuTimingError."""
    import torch

    if not torch.cuda.is_available():
        raise GpuTimingError("torch sees no CUDA device")
    if getattr(torch.version, "hip", None):
        raise GpuTimingError("AMD: CUPTI is NVIDIA's")
    if torch.cuda.is_current_stream_capturing():
        raise GpuTimingError("the current stream is capturing")
    from torch._C._autograd import _profiler_enabled

    if _profiler_enabled():
        raise GpuTimingError("torch.profiler is at work")
    try:
        from tritonprobe.gpu.cupti import CuptiError, the_cupti
        from tritonprobe.gpu.cupti_clock import marker_of, proton_holds
        from tritonprobe.gpu.driver import Driver, DriverError

        torch.empty(1, device="cuda")
        try:
            cupti, driver = the_cupti(), Driver()
            if proton_holds(cupti):
                raise GpuTimingError("Proton has subscribed to CUPTI")
            return cupti, driver, marker_of(cupti, driver, torch.cuda.current_device())
        except (CuptiError, DriverError, OSError) as error:
            raise GpuTimingError(str(error)) from None
    except ImportError as error:
        raise GpuTimingError(f"{error.name} is not installed") from None


def _clear(cupti: Cupti, graphs: bool) -> None:
    """Callbacks of ours, and no record of anything before. Raises CuptiError."""
    if graphs and cupti.left and not cupti.attached:
        raise GpuTimingError("this process has CUDA graphs, and CUPTI has left it once: a replay might fail")
    cupti.attach()
    cupti.flush()
    cupti.discard()
    cupti.dropped()


def _between_marks(cupti: Cupti) -> list[float]:
    """For each pair of markers, the time of the kernels between them, in milliseconds."""
    import numpy as np

    from tritonprobe.gpu.cupti import text_at
    from tritonprobe.gpu.driver import MARK
    from tritonprobe.gpu.records import grid_code

    records = cupti.records()
    addresses = np.unique(records.name).tolist()
    marks = [address for address in addresses if text_at(address) == MARK]
    is_mark = np.isin(records.name, np.array(marks, np.uint64))
    begin = np.flatnonzero(is_mark & (records.grid == grid_code(1, 1, 1)))
    end = np.flatnonzero(is_mark & (records.grid == grid_code(2, 1, 1)))
    if len(begin) != len(end) or np.any(begin >= end) or np.any(begin[1:] <= end[:-1]):
        raise GpuTimingError(f"{len(begin)} calls began and {len(end)} ended")
    summed = np.concatenate(([0], np.cumsum(records.end - records.start)))
    return [float(ns) / 1e6 for ns in summed[end] - summed[begin + 1]]


def _by_events(fn: Callable[[], Any], warmup: float, rep: float, grad_to_none: Sequence[Any] | None) -> list[float]:
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
        for tensor in grad_to_none or ():
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
