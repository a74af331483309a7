/* Linked to the driver: launches from several threads, each on a stream of its own. Prints "counted N of M". */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>
#include <pthread.h>

enum { THREADS = 8, LAUNCHES = 200 };
static CUfunction spin;
static CUcontext context;

static void *work(void *unused)
{
    CUstream stream;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, 1));
    for (int i = 0; i < LAUNCHES; i++) tg_spin(spin, stream, 1000, i);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
    return unused;
}

int main(void)
{
    uint64_t (*counted)(unsigned) = (uint64_t(*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_launches");
    pthread_t thread[THREADS];
    tg_context(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    spin = tg_kernel("tg_spin_ns");
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], 0, work, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], 0);
    printf("counted %d of %d\n", counted ? (int)counted(0) : 0, THREADS * LAUNCHES);
    return 0;
}
