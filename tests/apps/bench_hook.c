/* Nanoseconds per launch, for `bench hook`: THREADS threads make BATCHES batches of CALLS launches each; prints the median
 * batch of all threads as "KERNEL_NS GRAPH_NS". */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuStreamCreate(void **, unsigned);
int cuGraphLaunch(void *, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static int threads, batches, calls;
static void *context, *stream;
static double *kernel, *graph;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *run(void *at)
{
    long thread = (long)at;
    cuCtxSetCurrent(context);
    for (int b = 0; b < batches; b++) {
        double start = now();
        for (int i = 0; i < calls; i++) cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0);
        double middle = now();
        for (int i = 0; i < calls; i++) cuGraphLaunch((void *)80, stream);
        double end = now();
        kernel[thread * batches + b] = (middle - start) / calls;
        graph[thread * batches + b] = (end - middle) / calls;
    }
    return 0;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    pthread_t id[64];
    if (argc < 4) return 2;
    threads = atoi(argv[1]), batches = atoi(argv[2]), calls = atoi(argv[3]);
    kernel = calloc((size_t)threads * batches, sizeof *kernel);
    graph = calloc((size_t)threads * batches, sizeof *graph);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1)) return 1;
    for (long t = 0; t < threads; t++) pthread_create(&id[t], 0, run, (void *)t);
    for (int t = 0; t < threads; t++) pthread_join(id[t], 0);
    qsort(kernel, (size_t)threads * batches, sizeof *kernel, order);
    qsort(graph, (size_t)threads * batches, sizeof *graph, order);
    printf("%.3f %.3f\n", kernel[threads * batches / 2], graph[threads * batches / 2]);
    return 0;
}
