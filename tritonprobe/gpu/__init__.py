"""GPU time: kernel records from CUPTI in short windows, attributed to kernel and bucket. Only this room knows CUDA.

`records` and `attribution` and `graphs` and `analysis` are arithmetic on arrays; `cupti` and `driver` call the
libraries; `window` holds one window open, `clock` makes sense of it, `times` says when, within `budget`; `events` is
for machines without CUPTI; `publish` counts. `bench` times a function by the true GPU time of its kernels.
"""

from __future__ import annotations

from tritonprobe.gpu.benchmark import bench

__all__ = ["bench"]
