"""The driver's API, as far as a trainer calls it itself."""

from __future__ import annotations

import ctypes


class DriverError(OSError):
    """The driver refused a call."""


class Driver:
    """Of the context that is current."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise DriverError(f"{name}: CUDA error {code}")

    def allocate(self, size: int) -> int:
        """So many bytes of the device's memory; where."""
        at = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def free(self, at: int) -> None:
        """Gives memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(at))
