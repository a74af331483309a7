/* A plugin with a driver of its own: it is linked to it, and a program opens it in a namespace of its own. go() launches kernels
 * of NS for ever, and says "running" before the second. */
#include "tg.h"

int go(uint64_t ns);
int go(uint64_t ns)
{
    CUstream stream;
    tg_context(0);
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    for (int i = 0;; i++) {
        tg_spin(spin, stream, ns, i);
        MUST(cuStreamSynchronize(stream));
        if (i == 0) {
            printf("running\n");
            fflush(stdout);
        }
    }
}
