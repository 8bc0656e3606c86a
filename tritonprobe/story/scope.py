"""What a device can tell and what it cannot, in sentences."""

from __future__ import annotations


def measured(device: str) -> tuple[str, ...]:
    """What the numbers of `device` are worth."""
    if device.startswith("compile-only"):
        return (
            "compiling, ptxas and Triton's caches are real, and timed on this machine's cores",
            "launches, tiers, reasons and the requests' times are what happened",
        )
    if device in ("none", "interpreter"):
        return ("launches and the requests' times are what happened",)
    return ("launches, tiers, reasons, every phase of a cold call and the requests' times are what happened",)


def absent(device: str, has_ops: bool) -> tuple[str, ...]:
    """What is missing, and why. Ops are what has values where no kernel runs."""
    if device.startswith("compile-only"):
        return (
            "GPU times, and what a GPU adds to launcher_build, module_load, autotune and first_launch",
            "launches do nothing here, and "
            + ("the values of ops are their fallbacks'" if has_ops else "kernels write nothing"),
        )
    if device == "interpreter":
        return ("compiles and caches: Triton's interpreter runs kernels in Python",)
    if device == "none":
        return ("compiles and GPU times: no device was found",)
    return ("GPU time by kernel: /metrics has it, where TRITONPROBE_GPU_WINDOWS is set",)
