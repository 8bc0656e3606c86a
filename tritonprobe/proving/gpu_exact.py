"""Is every launch's GPU time under the right kernel and bucket? Threads launch two kernels whose grid says the bucket.

Empty grids, launches that raise, warm-ups and, in one part, a grid that stands for several buckets are mixed in.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import Any

from tritonprobe.proving.processes import Say

LAUNCHES = 100_000
THREADS = 4
WINDOW_SECONDS = 0.05
GRIDS = 100


def exact(say: Say, seed: int) -> dict[str, Any]:
    """Launches `LAUNCHES` times in each setting, with windows one after another, and checks every record."""
    import torch
    import triton

    from tritonprobe.probe import instrument, uninstrument
    from tritonprobe.proving import kernels
    from tritonprobe.runtime import configure, current

    configure(gpu_windows="on")
    instrument()
    watch = current().adapter.gpu
    assert watch is not None
    watch.times.begins("bench")  # no windows but ours
    mine = {"add": triton.jit(kernels.add_kernel.fn)}
    x, y, out = (torch.zeros(GRIDS * 128, device="cuda") for _ in range(3))
    for n in (128, 100):
        mine["add"][(1,)](x, y, out, n, BLOCK=128)
    torch.cuda.synchronize()
    found = {}
    for name, streams in (("four streams", THREADS), ("one stream", 1)):
        found[name] = _setting(mine["add"], (x, y, out), streams, seed)
        say(f"exact, {name}: {found[name]['wrong']} wrong")
    uninstrument()
    return found


def _setting(kernel: Any, tensors: tuple[Any, ...], streams: int, seed: int) -> dict[str, Any]:
    import torch

    from tritonprobe.gpu.cupti import the_cupti
    from tritonprobe.gpu.cupti_clock import marker_of
    from tritonprobe.gpu.driver import Driver
    from tritonprobe.gpu.window import Taken, Window
    from tritonprobe.runtime import current

    driver = Driver()
    driver.relax()
    cupti = the_cupti()
    device = driver.active_device()
    assert device is not None
    marker_of(cupti, driver, device)
    stream: Any = torch.cuda.Stream
    pool = [stream() for _ in range(streams)]
    counts = [0] * THREADS

    def launch(place: int) -> None:
        r = random.Random(seed + place)  # noqa: S311
        with torch.cuda.stream(pool[place % streams]):
            while counts[place] < LAUNCHES // THREADS:
                what = r.random()
                grid = r.randrange(1, GRIDS)
                if what < 0.02:
                    kernel[(0,)](*tensors, 128, BLOCK=128)
                elif what < 0.03:
                    kernel.warmup(*tensors, 128, BLOCK=128, grid=(1,))
                elif what < 0.04:
                    with suppress(Exception):
                        kernel[(grid,)](torch.zeros(1), *tensors[1:], 128, BLOCK=128)  # not on the GPU: raises
                else:
                    kernel[(grid,)](*tensors, grid * 128 - (0 if grid % 2 else 28), BLOCK=128)
                counts[place] += 1

    threads = [threading.Thread(target=launch, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    result: dict[str, Any] = {"windows": {}, "right": 0, "wrong": 0, "records": 0, "dropped": {}, "examples": []}
    while any(thread.is_alive() for thread in threads):
        with cupti.use:
            cupti.attach()
            taken = Window(cupti, current().adapter.windows).run(WINDOW_SECONDS)
        outcome = taken if isinstance(taken, str) else "ok"
        result["windows"][outcome] = result["windows"].get(outcome, 0) + 1
        if isinstance(taken, Taken):
            _check(taken, result)
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    return {**result, "launches": sum(counts)}


def _check(taken: Any, result: dict[str, Any]) -> None:
    """Each record's label against what its grid was launched with."""
    import numpy as np

    from tritonprobe.gpu.attribution import attribute, columns
    from tritonprobe.gpu.cupti import text_at

    names = [text_at(address) for address in taken.records.classes.name.tolist()]
    found = attribute(columns(taken.launches, taken.edges), taken.records, names)
    result["records"] += len(taken.records)
    for grid, label in zip(
        (taken.records.grid >> np.uint64(32)).tolist(), found.label(taken.records.which).tolist(), strict=True
    ):
        if label < 0:
            continue
        n = grid * 128 - (0 if grid % 2 else 28)
        said = found.labels[label]
        if said is not None and said[1] == f"n<={1 << (n - 1).bit_length()}":
            result["right"] += 1
        else:
            result["wrong"] += 1
            result["examples"] = [*result["examples"], [grid, str(said)]][:5]
    for reason, count in found.dropped.items():
        result["dropped"][reason] = result["dropped"].get(reason, 0) + count
