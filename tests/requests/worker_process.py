"""A worker of an engine, as a process of its own: compiles a real kernel in a step, and tells when by its own clock.

Run as ``python -m tests.requests.worker_process STEP``; TRITONPROBE_DIR, _ENGINE and _DEVICE are its environment's. It
answers ``ready``, waits for a line, runs the step, answers the call's start and end, and waits for another line.
"""

from __future__ import annotations

import sys
import time

import click
import torch
import triton
import triton.language as tl

import tritonprobe


@triton.jit
def scale_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)


def main(step: int) -> None:
    tritonprobe.instrument()
    values = torch.zeros(64)
    click.echo("ready")
    sys.stdin.readline()
    with tritonprobe.step((), id=step):
        start = time.monotonic_ns()
        scale_kernel[(1,)](values, 64, BLOCK=64)
        end = time.monotonic_ns()
    click.echo(f"{start} {end}")
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]))
