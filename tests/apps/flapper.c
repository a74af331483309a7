/* A process on several devices, each of which becomes busy and idle all the time: flapper DEVICES SECONDS. Then it is
 * idle.
 *
 * Prints "idle PERIODS" then, of all devices together, and ends with its standard input. */
#include "tg.h"
#include <pthread.h>
#include <unistd.h>

enum { WORK_NS = 30000, GAP_US = 300 };

static uint64_t until, periods[16];

static void *flap(void *nth)
{
    long device = (long)nth;
    CUstream stream;
    tg_context((int)device);
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    while (tg_now() < until) {
        tg_spin(spin, stream, WORK_NS, 1);
        MUST(cuStreamSynchronize(stream));
        periods[device]++;
        usleep(GAP_US);
    }
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[16];
    int devices = argc == 3 ? atoi(argv[1]) : 0;
    uint64_t all = 0;
    if (devices < 1 || devices > 16) return 2;
    MUST(cuInit(0));
    until = tg_now() + strtoull(argv[2], 0, 10) * 1000000000u;
    for (long i = 0; i < devices; i++) pthread_create(&threads[i], 0, flap, (void *)i);
    for (int i = 0; i < devices; i++) {
        pthread_join(threads[i], 0);
        all += periods[i];
    }
    printf("idle %llu\n", (unsigned long long)all);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
