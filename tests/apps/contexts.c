/* A program with any number of contexts, driven by lines on standard input; answers each with "ok NS", NS = CLOCK_MONOTONIC
 * when it was done.
 *   make COUNT        COUNT more contexts, each with a stream
 *   drop COUNT        destroys the newest COUNT contexts
 *   launch NS         a kernel of NS nanoseconds in every context, not waited for
 *   sync              waits for everything launched
 *   cycle COUNT NS    COUNT times: a context, a kernel of NS nanoseconds in it, waited for, and the context destroyed
 *   abandon           begins a capture on a stream and destroys the stream, and the same with the context of another
 *   entangle COUNT    COUNT times: destroys a context, and then a stream, whose work waits for a thread that uses another context
 * Device ordinal: first argument, 0 by default; one context exists from the start. */
#include "tg.h"
#include <pthread.h>
#include <semaphore.h>

CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

enum { MOST = 64, RELAXED = 2 };
static struct { CUcontext context; CUstream stream; CUfunction spin; } of[MOST];
static int held;
static CUdevice device;
static unsigned long long tag = 1;

static void make(void)
{
    if (held == MOST) exit(3);
    MUST(cuCtxCreate_v2(&of[held].context, 0, device));
    of[held].spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&of[held].stream, 1));
    held++;
}

static void drop(void)
{
    if (!held) exit(3);
    held--;
    MUST(cuCtxDestroy_v2(of[held].context));
}

static void launch(int at, uint64_t ns)
{
    MUST(cuCtxSetCurrent(of[at].context));
    tg_spin(of[at].spin, of[at].stream, ns, tag++);
}

static void sync(int at)
{
    MUST(cuCtxSetCurrent(of[at].context));
    MUST(cuStreamSynchronize(of[at].stream));
}

static void abandon(void)
{
    CUstream stream;
    MUST(cuCtxSetCurrent(of[0].context));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuStreamBeginCapture_v2(stream, RELAXED));
    MUST(cuStreamDestroy_v2(stream));
    make();
    MUST(cuStreamBeginCapture_v2(of[held - 1].stream, RELAXED));
    drop();
    MUST(cuCtxSetCurrent(of[0].context));
}

static sem_t asked, answered;

/* Uses the first context whenever it is asked to. */
static void *other_thread(void *nothing)
{
    CUstream stream;
    for (;;) {
        sem_wait(&asked);
        MUST(cuCtxSetCurrent(of[0].context));
        MUST(cuStreamCreate(&stream, 1));
        tg_spin(of[0].spin, stream, 1000, 1);
        MUST(cuStreamDestroy_v2(stream));
        sem_post(&answered);
    }
    return nothing;
}

/* Work of the GPU that ends when another thread of the program has done something. */
static void wait_for_the_other(void *nothing)
{
    (void)nothing;
    sem_post(&asked);
    sem_wait(&answered);
}

static void entangle(void)
{
    static pthread_t other;
    if (!other) {
        sem_init(&asked, 0, 0);
        sem_init(&answered, 0, 0);
        pthread_create(&other, 0, other_thread, 0);
    }
    make();
    tg_spin(of[held - 1].spin, of[held - 1].stream, 1000000, tag++);
    MUST(cuLaunchHostFunc(of[held - 1].stream, wait_for_the_other, 0));
    drop();
    make();
    MUST(cuLaunchHostFunc(of[held - 1].stream, wait_for_the_other, 0));
    MUST(cuStreamDestroy_v2(of[held - 1].stream));
    drop();
    MUST(cuCtxSetCurrent(of[0].context));
}

static void done(void)
{
    printf("ok %llu\n", (unsigned long long)tg_now());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[128];
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, argc > 1 ? atoi(argv[1]) : 0));
    make();
    done();
    while (fgets(line, sizeof line, stdin)) {
        char what[16];
        unsigned long long a = 1, b = 0;
        if (sscanf(line, "%15s %llu %llu", what, &a, &b) < 1) continue;
        if (!strcmp(what, "make")) {
            while (a--) make();
        } else if (!strcmp(what, "drop")) {
            while (a--) drop();
        } else if (!strcmp(what, "launch")) {
            for (int i = 0; i < held; i++) launch(i, a);
        } else if (!strcmp(what, "sync")) {
            for (int i = 0; i < held; i++) sync(i);
        } else if (!strcmp(what, "cycle")) {
            while (a--) {
                make();
                launch(held - 1, b);
                sync(held - 1);
                drop();
            }
        } else if (!strcmp(what, "abandon")) {
            abandon();
        } else if (!strcmp(what, "entangle")) {
            while (a--) entangle();
        } else {
            fprintf(stderr, "contexts: unknown command %s\n", what);
            return 2;
        }
        done();
    }
    return 0;
}
