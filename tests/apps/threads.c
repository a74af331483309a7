/* Threads that share streams, events and memory, and use the default streams in between: nothing hangs and every
 * launch counts once. Prints "ok". */
#include "tg.h"
#include <pthread.h>

CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventQuery(CUevent);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void **, void **);

enum { THREADS = 6, SHARED = 3, ROUNDS = 150 };

static CUfunction count;
static CUcontext context;
static CUstream shared[SHARED];
static CUevent events[SHARED];
static int calls[THREADS];

static void called(void *at) { ++*(int *)at; }

static void launch(CUstream stream, CUdeviceptr counter)
{
    uint64_t ns = 1000, tag = 0;
    void *args[] = {&counter, &ns, &tag};
    MUST(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
}

static void *work(void *at)
{
    int self = (int)((int *)at - calls);
    CUstream own;
    CUevent mine;
    CUdeviceptr counter, scratch;
    uint64_t ns = 0, tag = 0, value = 0, expected = 0;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&own, (unsigned)self & 1));
    MUST(cuEventCreate(&mine, 2));
    MUST(cuMemAlloc_v2(&counter, 8));
    MUST(cuMemsetD8_v2(counter, 0, 8));
    MUST(cuCtxSynchronize());
    for (int i = 0; i < ROUNDS; i++) {
        CUstream one = shared[(self + i) % SHARED];
        CUevent theirs = events[i % SHARED];
        launch(own, counter);
        MUST(cuEventRecord(mine, own));
        MUST(cuStreamWaitEvent(one, mine, 0));
        launch(one, counter);
        MUST(cuEventRecord(theirs, one));
        MUST(cuStreamWaitEvent(own, theirs, 0));
        expected += 2;
        if (i % 7 == 0) {
            launch(0, counter);
            expected++;
            MUST(cuStreamSynchronize(0));
        }
        if (i % 5 == 0) {
            void *args[] = {&counter, &ns, &tag};
            /* The thread's own stream is blocking and may overtake `own`: settle first. */
            MUST(cuStreamSynchronize(own));
            MUST(cuStreamSynchronize(one));
            MUST(cuLaunchKernel_ptsz(count, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
            MUST(cuStreamSynchronize((CUstream)2));
            expected++;
        }
        if (i % 11 == 0) {
            MUST(cuMemAlloc_v2(&scratch, 4096u << (i % 4)));
            MUST(cuMemFree_v2(scratch));
        }
        if (i % 13 == 0)
            MUST(cuLaunchHostFunc(own, called, at));
        (void)cuEventQuery(theirs);
        /* A non-blocking stream does not see the legacy stream's work in order. */
        MUST(cuStreamSynchronize(own));
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoHAsync_v2(&value, counter, 8, own));
    MUST(cuStreamSynchronize(own));
    if (value != expected) {
        fprintf(stderr, "thread %d: %llu, not %llu\n", self, (unsigned long long)value, (unsigned long long)expected);
        exit(1);
    }
    if (calls[self] != (ROUNDS + 12) / 13) {
        fprintf(stderr, "thread %d: %d host functions\n", self, calls[self]);
        exit(1);
    }
    MUST(cuMemFree_v2(counter));
    MUST(cuEventDestroy_v2(mine));
    MUST(cuStreamDestroy_v2(own));
    return 0;
}

int main(void)
{
    pthread_t threads[THREADS];
    tg_context(0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    count = tg_kernel("tg_count");
    for (int i = 0; i < SHARED; i++) {
        MUST(cuStreamCreate(&shared[i], 0));
        MUST(cuEventCreate(&events[i], 2));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, work, &calls[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    puts("ok");
    return 0;
}
