/* A library linked to the driver, opened by others: go() launches five kernels and returns their number. */
#include "tg.h"

int go(void);
int go(void)
{
    CUstream stream;
    tg_context(0);
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    for (int i = 0; i < 5; i++) tg_spin(spin, stream, 1000, i);
    MUST(cuStreamSynchronize(stream));
    return 5;
}
