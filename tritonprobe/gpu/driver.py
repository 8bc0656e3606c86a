"""The few calls of the CUDA driver that the clock needs for itself. Knows ctypes and libcuda's C interface.

The library is never loaded by us and no context is made: what is not there yet, is not there. A thread of ours first
says that its calls concern nobody's capture (`relax`): else a call of it could break a capture of another thread.
"""

from __future__ import annotations

import ctypes as c
import os

MARK = "tritonprobe_mark"
_PTX = f""".version 7.0
.target sm_80
.address_size 64
.visible .entry {MARK}()
{{
    ret;
}}
"""
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class DriverError(RuntimeError):
    """A call of the CUDA driver that failed; the message names it and CUDA's reason."""


class Driver:
    """libcuda as this process has loaded it. Raises OSError where it has not."""

    def __init__(self) -> None:
        self._lib = lib = c.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        p, u, i = c.c_void_p, c.c_uint, c.c_int
        for name, arguments in (
            ("cuDeviceGetCount", (c.POINTER(i),)),
            ("cuDevicePrimaryCtxGetState", (i, c.POINTER(u), c.POINTER(i))),
            ("cuDevicePrimaryCtxRetain", (c.POINTER(p), i)),
            ("cuDevicePrimaryCtxRelease_v2", (i,)),
            ("cuCtxSetCurrent", (p,)),
            ("cuCtxGetCurrent", (c.POINTER(p),)),
            ("cuThreadExchangeStreamCaptureMode", (c.POINTER(i),)),
            ("cuStreamCreate", (c.POINTER(p), u)),
            ("cuStreamDestroy_v2", (p,)),
            ("cuStreamSynchronize", (p,)),
            ("cuModuleLoadData", (c.POINTER(p), c.c_char_p)),
            ("cuModuleUnload", (p,)),
            ("cuModuleGetFunction", (c.POINTER(p), p, c.c_char_p)),
            ("cuLaunchKernel", (p, u, u, u, u, u, u, u, p, p, p)),
            ("cuGetErrorName", (i, c.POINTER(c.c_char_p))),
            ("cuDriverGetVersion", (c.POINTER(i),)),
        ):
            function = getattr(lib, name)
            function.argtypes, function.restype = arguments, i

    def call(self, name: str, *arguments: object) -> None:
        """Raises DriverError."""
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = c.c_char_p()
            self._lib.cuGetErrorName(code, c.byref(text))
            raise DriverError(f"{name}: {(text.value or b'unknown').decode()} ({code})")

    @property
    def version(self) -> int:
        found = c.c_int()
        self.call("cuDriverGetVersion", c.byref(found))
        return found.value

    def relax(self) -> None:
        """This thread's calls are no part of any capture, and break none."""
        mode = c.c_int(_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", c.byref(mode))

    def active_device(self) -> int | None:
        """The first device whose primary context the program has made; None before."""
        count = c.c_int()
        if self._lib.cuDeviceGetCount(c.byref(count)):
            return None  # not initialised
        for device in range(count.value):
            flags, active = c.c_uint(), c.c_int()
            if not self._lib.cuDevicePrimaryCtxGetState(device, c.byref(flags), c.byref(active)) and active.value:
                return device
        return None


class Marker:
    """A kernel of our own that does nothing, in the primary context of `device`; and a stream of our own.

    Raises DriverError. The context is the program's and stays as it is.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._device = driver, device
        self._context, self._module, self._function, self.stream = (c.c_void_p() for _ in range(4))
        driver.call("cuDevicePrimaryCtxRetain", c.byref(self._context), device)
        try:
            before = self._enter()
            try:
                driver.call("cuModuleLoadData", c.byref(self._module), _PTX.encode())
                driver.call("cuModuleGetFunction", c.byref(self._function), self._module, MARK.encode())
                driver.call("cuStreamCreate", c.byref(self.stream), _NON_BLOCKING)
            finally:
                driver.call("cuCtxSetCurrent", before)
        except DriverError:
            driver.call("cuDevicePrimaryCtxRelease_v2", device)
            raise

    def launch(self, blocks: int, stream: int | None = None) -> None:
        """Launches on `stream` of the current context, or on our own stream of ours."""
        if stream is not None:
            self._launch(blocks, c.c_void_p(stream))
            return
        before = self._enter()
        try:
            self._launch(blocks, self.stream)
        finally:
            self._driver.call("cuCtxSetCurrent", before)

    def finish(self) -> None:
        """Waits for our own stream."""
        before = self._enter()
        try:
            self._driver.call("cuStreamSynchronize", self.stream)
        finally:
            self._driver.call("cuCtxSetCurrent", before)

    def close(self) -> None:
        before = self._enter()
        try:
            self._driver.call("cuStreamDestroy_v2", self.stream)
            self._driver.call("cuModuleUnload", self._module)
        finally:
            self._driver.call("cuCtxSetCurrent", before)
            self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _launch(self, blocks: int, stream: c.c_void_p) -> None:
        self._driver.call("cuLaunchKernel", self._function, blocks, 1, 1, 1, 1, 1, 0, stream, None, None)

    def _enter(self) -> c.c_void_p:
        before = c.c_void_p()
        self._driver.call("cuCtxGetCurrent", c.byref(before))
        self._driver.call("cuCtxSetCurrent", self._context)
        return before
