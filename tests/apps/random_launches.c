/* Threads that launch in random patterns, kernels, graphs and small copies to the device: bursts, single launches, launches into the moment in which the device becomes idle,
 * pauses around the prober's interval, syncs or none, one stream or many. Arguments: LAUNCHES in all, SEED, THREADS; no thread
 * goes on before all have launched once. Runs on running_cuda.c, whose report it prints, with how many launches the library
 * counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuGraphLaunch(void *, void *);
int cuMemcpyDtoD_v2(unsigned long long, unsigned long long, size_t);
int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int running_watch(void);
int running_idle(void);
void running_report(void);

enum { STREAMS = 8, MOST = 1200 };
static void *context, *stream[STREAMS];
static uint64_t each, seed;
static pthread_barrier_t begun;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *run(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument, state = (seed + 1) * 0x9e3779b97f4a7c15u + thread * 0x632be59bd9b4e019u;
    cuCtxSetCurrent(context);
    cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream[thread % STREAMS], 0, 0);
    pthread_barrier_wait(&begun);
    for (uint64_t made = 1; made < each;) {
        uint64_t burst = next(&state) % 4 ? 1 + next(&state) % 8 : 1 + next(&state) % 512;
        void *on = stream[next(&state) % STREAMS];
        for (uint64_t i = 0; i < burst && made < each; i++, made++) {
            if (next(&state) % 64 == 0) on = stream[next(&state) % STREAMS];
            uint64_t what = next(&state) % 32;
            if (what == 0) cuMemcpyDtoD_v2(4096, 8192, 64);
            else if (what == 1) cuMemcpyHtoD_v2(4096, &state, sizeof state);
            else if (i & 1) cuGraphLaunch((void *)80, on);
            else cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, on, 0, 0);
        }
        switch (next(&state) % 4) {
        case 0: {
            struct timespec rest = {0, (long)(next(&state) % 1500000)};
            nanosleep(&rest, 0);
            break;
        }
        case 1:
            cuStreamSynchronize(on);
            break;
        case 2: /* Into the idle edge, or given up when others keep the device busy. */
            for (int i = 0; i < 2000 && !running_idle(); i++) {
                struct timespec rest = {0, 1000};
                if (i % 16 == 0) nanosleep(&rest, 0);
            }
            break;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static pthread_t id[MOST];
    int threads = argc > 3 ? atoi(argv[3]) : 2;
    if (argc < 3 || threads < 1 || threads > MOST) return 2;
    each = strtoull(argv[1], 0, 10) / (uint64_t)threads;
    seed = strtoull(argv[2], 0, 10);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    for (int i = 0; i < STREAMS; i++)
        if (cuStreamCreate(&stream[i], 1)) return 1;
    cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream[0], 0, 0);
    cuCtxSynchronize();
    /* The page comes, takes the private one's place, and becomes idle. */
    for (int i = 0; !(running_watch() && running_idle()); i++) {
        if (i == 20000) return fprintf(stderr, "no page, or never idle\n"), 3;
        usleep(1000);
    }
    usleep(10000);
    if (!running_watch()) return 3;
    uint64_t (*counted)(uint32_t) = (uint64_t(*)(uint32_t))dlsym(RTLD_DEFAULT, "tidegate_launches");
    if (!counted) return 4;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&begun, 0, (unsigned)threads);
    for (int t = 0; t < threads; t++)
        if (pthread_create(&id[t], &small, run, (void *)(uintptr_t)t)) return 5;
    for (int t = 0; t < threads; t++) pthread_join(id[t], 0);
    printf("counted %llu ", (unsigned long long)counted(0));
    running_report();
    return 0;
}
