/* A program with any number of contexts, driven by lines on standard input; answers each with "ok NS", NS = CLOCK_MONOTONIC
 * when it was done.
 *   make COUNT        COUNT more contexts, each with a stream
 *   drop COUNT        destroys the newest COUNT contexts
 *   launch NS         a kernel of NS nanoseconds in every context, not waited for
 *   sync              waits for everything launched
 *   cycle COUNT NS    COUNT times: a context, a kernel of NS nanoseconds in it, waited for, and the context destroyed
 * Device ordinal: first argument, 0 by default; one context exists from the start. */
#include "tg.h"

enum { MOST = 64 };
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
        } else {
            fprintf(stderr, "contexts: unknown command %s\n", what);
            return 2;
        }
        done();
    }
    return 0;
}
