/* Linked to the driver: launches from several threads, each on a stream of its own, ROUNDS times (1). Prints "counted N
 * of M"; N is the least that was read since the last thread ended, for WATCH milliseconds (0) of each round. */
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

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    uint64_t watch_ns = (argc > 2 ? strtoull(argv[2], 0, 10) : 0) * 1000000u;
    uint64_t (*counted)(unsigned) = (uint64_t(*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_launches");
    pthread_t thread[THREADS];
    tg_context(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    spin = tg_kernel("tg_spin_ns");
    for (int round = 1;; round++) {
        uint64_t launched = (uint64_t)round * THREADS * LAUNCHES, least = 0;
        for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], 0, work, 0);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], 0);
        uint64_t end = now_ns() + watch_ns;
        if (counted) least = counted(0);
        while (counted && least == launched && now_ns() < end) least = counted(0);
        if (round == rounds || (counted && least != launched)) {
            printf("counted %llu of %llu\n", (unsigned long long)least, (unsigned long long)launched);
            return 0;
        }
    }
}
