"""Programs that end, fork and launch in ways that once crashed or stood still: python -m tests.gpu.gpu_programs PART"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import threading
import time

import torch

import tritonprobe
from tests.gpu import tiny
from tritonprobe.gpu import cupti as cupti_module
from tritonprobe.gpu.cupti_clock import marker_of
from tritonprobe.gpu.driver import Driver
from tritonprobe.runtime import current


def deadlock() -> None:
    """One thread launches holding the interpreter's lock, others do not, while records go on and off."""
    cupti_module.BUFFER = 16 << 10  # so that buffers come and go all the time
    torch.zeros(1, device="cuda")
    driver = Driver()
    driver.relax()
    cupti = cupti_module.the_cupti()
    marker = marker_of(cupti, driver, 0)
    holding = ctypes.PyDLL("libcuda.so.1").cuLaunchKernel
    holding.argtypes = driver._lib.cuLaunchKernel.argtypes
    stop = threading.Event()
    counts = [0] * 4

    def launch(place: int) -> None:
        torch.zeros(1, device="cuda")
        call = driver._lib.cuLaunchKernel if place else holding
        while not stop.is_set():
            call(marker._function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
            counts[place] += 1

    threads = [threading.Thread(target=launch, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    records, end = 0, time.monotonic() + 5
    while time.monotonic() < end:
        cupti.enable()
        time.sleep(0.002)
        cupti.disable()
        cupti.collect(0.5)
        records += len(cupti.records())
    stop.set()
    for thread in threads:
        thread.join()
    assert min(counts) > 100
    assert records > 100
    sys.stdout.write(f"launches {counts}, records {records}, declined {cupti.dropped()}\n")


def leaving() -> None:
    """Children forked inside and outside of windows; then the program ends inside one."""
    tritonprobe.configure(gpu_windows="on")
    tritonprobe.instrument()
    x = torch.zeros(1 << 12, device="cuda")
    call = lambda: tiny.bump[(1,)](x, 128, BLOCK=128)  # noqa: E731
    call()

    def window(seconds: float) -> threading.Thread:
        thread = threading.Thread(target=lambda: tritonprobe.gpu_window(seconds), daemon=True)
        thread.start()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            call()
        return thread

    for leave in (sys.exit, os._exit):
        thread = window(0.6)
        child = os.fork()
        if child == 0:
            leave(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        thread.join()
    watch = current().adapter.gpu
    assert watch is not None
    sys.stdout.write(f"{watch.times.info}\n")
    window(30)


if __name__ == "__main__":
    if sys.argv[1] == "deadlock":  # not where the program forks: a child would wait for the watching thread at its end
        faulthandler.dump_traceback_later(40, exit=True)
    {"deadlock": deadlock, "leaving": leaving}[sys.argv[1]]()
    sys.stdout.write("done\n")
