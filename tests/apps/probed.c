/* Captures while the device is busy, so that a prober is at work: every mode, with the busy stream's launches made by
 * the capturing thread or by another one. A capture that ends with an error fails the program. Ends with a busy device
 * becoming idle, as tidegate_busy says. Prints "ok N", N captures. */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static CUfunction spin;
static CUcontext context;
static volatile int stop;

static void *keep_busy(void *argument)
{
    CUstream stream = argument;
    MUST(cuCtxSetCurrent(context));
    for (uint64_t i = 0; !stop; i++) {
        tg_spin(spin, stream, 300000, i);
        if (i % 4 == 0) MUST(cuStreamSynchronize(stream));
    }
    MUST(cuStreamSynchronize(stream));
    return 0;
}

int main(void)
{
    int (*busy)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_busy");
    CUstream work, capture;
    pthread_t other;
    int captures = 0;
    tg_context(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&work, 1));
    MUST(cuStreamCreate(&capture, 1));
    for (int mode = 0; mode < 3; mode++) {
        /* A launch is legal from any thread only while nobody else captures in global mode. */
        int alone = mode == 0;
        stop = 0;
        if (!alone) pthread_create(&other, 0, keep_busy, work);
        for (int i = 0; i < 40; i++, captures++) {
            CUgraph graph;
            CUgraphExec exec;
            if (alone) tg_spin(spin, work, 1000000, i);
            MUST(cuStreamBeginCapture_v2(capture, mode));
            for (int k = 0; k < 3; k++) {
                tg_spin(spin, capture, 1000, k);
                usleep(1000);
            }
            MUST(cuStreamEndCapture(capture, &graph));
            MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
            MUST(cuGraphLaunch(exec, capture));
            MUST(cuStreamSynchronize(capture));
            MUST(cuGraphExecDestroy(exec));
            MUST(cuGraphDestroy(graph));
        }
        stop = 1;
        if (!alone) pthread_join(other, 0);
    }
    MUST(cuCtxSynchronize());
    for (int i = 0; busy && busy(0) && i < 5000; i++) usleep(1000);
    if (busy && busy(0)) return fprintf(stderr, "still busy\n"), 2;
    printf("ok %d\n", captures);
    return 0;
}
