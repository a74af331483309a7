"""The unmodified `numba-cuda` package: compiles a kernel for real, loads, launches and copies back.

The virtual GPU does not execute compiled kernels, so what is checked is the way there and back:
transfers keep their bytes, streams and events order them, launches return. Prints "ok" last, and ends
with its standard input.
"""

import sys

import numpy as np
from numba import cuda


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


def main():
    print(cuda.get_current_device().name)
    x = np.arange(10_000, dtype=np.float32)
    stream = cuda.stream()
    start, end = cuda.event(), cuda.event()
    d_x = cuda.to_device(x, stream=stream)
    d_y = cuda.device_array_like(x, stream=stream)
    start.record(stream)
    for _ in range(10):
        axpy[64, 256, stream](2.0, d_x, d_y)
    end.record(stream)
    back = d_x.copy_to_host(stream=stream)
    stream.synchronize()
    assert np.array_equal(back, x)
    assert start.elapsed_time(end) > 0
    axpy.forall(x.size)(1.0, d_x, d_y)
    d_y.copy_to_host()
    with cuda.pinned(x):
        d_x.copy_to_device(x)
    managed = cuda.managed_array(16, dtype=np.int32)
    managed[:] = 7
    cuda.synchronize()
    assert (managed == 7).all()
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total
    cuda.current_context().reset()
    print("ok", flush=True)
    sys.stdin.read()


main()
