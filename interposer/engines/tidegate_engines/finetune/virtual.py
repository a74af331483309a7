"""The virtual GPU as a trainer's device: memory and time are its, arithmetic is the host's.

Held state lies in the device's memory and comes and goes by the driver's copies, which wait at the gate like any
launch. A unit's work is a kernel that spins for as long as such a unit takes on a real GPU.

All of it goes to one stream, and only that is waited for. The wait for a whole context, and a copy that waits inside
the driver, as one from or to pageable memory does, may hold locks that taking memory needs: a thread that is stopped
there keeps all of it from online.
"""

from __future__ import annotations

import ctypes

from .driver import Driver
from .machine import Phase, Unit

#: Nanoseconds of one token through one layer of Llama-3.1-8B on an H200: 0.0199 ms a token through 32 layers
#: (`agent/probe/engines/model.py`, vLLM 0.24.0).
FORWARD_NS = 622
#: Backward computes the layer again, and two products for each of forward's.
BACKWARD_NS = 3 * FORWARD_NS

#: Bytes of a copy that are under way at once.
STAGED = 2 << 20

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry tg_spin_ns(.param .u64 ns, .param .u64 tag)
{
.reg .u64 %a, %b, %c, %d;
.reg .pred %p;
ld.param.u64 %a, [ns];
mov.u64 %b, %globaltimer;
L1:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L1;
ret;
}
"""


class Device(Driver):
    """Device 0, by the driver API."""

    def __init__(self) -> None:
        super().__init__()
        self._context, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.here()
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"tg_spin_ns")
        self._call("cuStreamCreate", ctypes.byref(self._stream), 1)
        page = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(page), ctypes.c_size_t(STAGED), 0)
        #: Page-locked: what is copied goes through it.
        self._page = page.value or 0

    def here(self) -> None:
        """Has the calling thread use this device: autograd has threads of its own."""
        self._call("cuCtxSetCurrent", self._context)

    def free(self, at: int) -> None:
        self.here()
        super().free(at)

    def read(self, to: int, at: int, size: int) -> None:
        """Copies to the host's memory at ``to``."""
        for done in range(0, size, STAGED):
            part = min(size - done, STAGED)
            self._copy("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(self._page), ctypes.c_uint64(at + done), part)
            ctypes.memmove(to + done, self._page, part)

    def write(self, at: int, of: int, size: int) -> None:
        """Copies from the host's memory at ``of``."""
        for done in range(0, size, STAGED):
            part = min(size - done, STAGED)
            ctypes.memmove(self._page, of + done, part)
            self._copy("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at + done), ctypes.c_void_p(self._page), part)

    def _copy(self, name: str, to: object, of: object, size: int) -> None:
        self._call(name, to, of, ctypes.c_size_t(size), self._stream)
        self.wait()

    def spin(self, ns: int) -> None:
        """Is busy for so long."""
        time, tag = ctypes.c_uint64(ns), ctypes.c_uint64(1)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(time), ctypes.addressof(tag))
        self._call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, self._stream, arguments, None)

    def wait(self) -> None:
        """Until it has done what was asked of it."""
        self._call("cuStreamSynchronize", self._stream)

    def unit(self, unit: Unit, tokens: int) -> None:
        """The time of a unit."""
        self.here()
        self.spin(tokens * (FORWARD_NS if unit.phase is Phase.FORWARD else BACKWARD_NS))
        self.wait()
