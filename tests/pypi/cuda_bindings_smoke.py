"""The unmodified `cuda-bindings` package from its initialisation to its results.

Allocates, copies, launches a kernel from PTX text, records and replays a graph, and checks what came
back. Prints "ok" last, and ends with its standard input.
"""

import ctypes
import sys

import numpy as np
from cuda.bindings import driver

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry tg_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n)
{ ret; }
\0"""
N = 4096


def must(result):
    """The values of a call that has to succeed."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(code)
        sys.exit(f"{name.decode()}")
    return values[0] if len(values) == 1 else values


def main():
    must(driver.cuInit(0))
    assert must(driver.cuDriverGetVersion()) == 13050
    device = must(driver.cuDeviceGet(0))
    print(must(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode())
    context = must(driver.cuDevicePrimaryCtxRetain(device))
    must(driver.cuCtxSetCurrent(context))
    module = must(driver.cuModuleLoadData(PTX))
    add = must(driver.cuModuleGetFunction(module, b"tg_add"))
    stream = must(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))

    one = np.arange(N, dtype=np.float32)
    two = np.full(N, 0.5, dtype=np.float32)
    out = np.zeros(N, dtype=np.float32)
    buffers = [must(driver.cuMemAlloc(one.nbytes)) for _ in range(3)]
    must(driver.cuMemcpyHtoD(buffers[0], one.ctypes.data, one.nbytes))
    must(driver.cuMemcpyHtoD(buffers[1], two.ctypes.data, two.nbytes))
    arguments = (
        (*map(int, buffers), N),
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    )

    def launch():
        must(driver.cuLaunchKernel(add, N // 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0))

    launch()
    must(driver.cuMemcpyDtoHAsync(out.ctypes.data, buffers[2], out.nbytes, stream))
    must(driver.cuStreamSynchronize(stream))
    assert np.array_equal(out, one + two)

    must(driver.cuMemsetD32(buffers[2], 0, N))
    must(driver.cuCtxSynchronize())
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    must(driver.cuStreamBeginCapture(stream, mode))
    launch()
    graph = must(driver.cuStreamEndCapture(stream))
    instance = must(driver.cuGraphInstantiate(graph, 0))
    must(driver.cuStreamSynchronize(stream))
    must(driver.cuMemcpyDtoH(out.ctypes.data, buffers[2], out.nbytes))
    assert not out.any(), "a captured launch ran"
    for _ in range(5):
        must(driver.cuGraphLaunch(instance, stream))
    must(driver.cuStreamSynchronize(stream))
    must(driver.cuMemcpyDtoH(out.ctypes.data, buffers[2], out.nbytes))
    assert np.array_equal(out, one + two)

    must(driver.cuGraphExecDestroy(instance))
    must(driver.cuGraphDestroy(graph))
    for buffer in buffers:
        must(driver.cuMemFree(buffer))
    must(driver.cuStreamDestroy(stream))
    must(driver.cuModuleUnload(module))
    must(driver.cuDevicePrimaryCtxRelease(device))
    print("ok", flush=True)
    sys.stdin.read()


main()
