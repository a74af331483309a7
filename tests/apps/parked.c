/* Keeps its device busy in the way its argument names: "parked" makes a stream wait for a value that nobody writes,
 * "steady" launches ever more work than gets done, "dummy" launches next to nothing every 5 ms. Prints "ok" when it does so. */
#include "tg.h"
#include <unistd.h>

CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, unsigned, unsigned);

int main(int argc, char **argv)
{
    CUstream stream;
    CUdeviceptr word;
    tg_context(0);
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemAlloc_v2(&word, 64));
    MUST(cuMemsetD8_v2(word, 0, 64));
    MUST(cuCtxSynchronize());
    if (argc > 1 && !strcmp(argv[1], "parked")) MUST(cuStreamWaitValue32_v2(stream, word, 1, 1));
    printf("ok\n");
    fflush(stdout);
    for (;;) {
        if (argc > 1 && !strcmp(argv[1], "steady")) tg_spin(spin, stream, 6000000, 0);
        if (argc > 1 && !strcmp(argv[1], "dummy")) tg_spin(spin, stream, 1000, 0);
        usleep(5000);
    }
}
