"""What a device can tell and what it cannot, in sentences."""

from __future__ import annotations


def measured(device: str) -> tuple[str, ...]:
    """What the numbers of `device` are worth."""
    if device.startswith("compile-only"):
        return (
            "compiles, ptxas and Triton's caches are real, and so are their times on this machine's cores",
            "launches, tiers, reasons and the requests' times are counted and timed as they happened",
        )
    if device in ("none", "interpreter"):
        return ("launches and the requests' times are counted and timed as they happened",)
    return ("launches, tiers, reasons, every phase of a cold call and the requests' times, as they happened",)


def absent(device: str) -> tuple[str, ...]:
    """What is missing, and why."""
    if device.startswith("compile-only"):
        return (
            "GPU times: there is no GPU here; launches do nothing, and torch on the CPU gives the values",
            "the benchmarks of autotuning, building launchers and loading modules: they need a GPU",
        )
    if device == "interpreter":
        return ("compiles and caches: Triton's interpreter runs kernels in Python",)
    if device == "none":
        return ("compiles and GPU times: no device was found",)
    return ("GPU time by kernel: this version does not measure it",)
