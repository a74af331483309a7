/* own_stream ends|sleeps|goes_on|context: an online program built with --default-stream per-thread. A worker launches a kernel of
 * 300 ms on its own default stream, and never waits for it: it ends, sleeps, or launches short ones in between, or its context
 * ends. Says "busy" once the kernel has begun, and for each line on standard input what tidegate_busy says. Main waits for the
 * worker's last kernel by an event of the worker's, which says nothing of the worker's stream to the library. */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                             void **);
CUresult cuEventRecord_ptsz(CUevent, CUstream);

static CUfunction spin;
static CUcontext context;
static CUevent done;
static const char *then;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int launched;

static void launch(uint64_t ns)
{
    uint64_t tag = 1;
    void *args[] = {&ns, &tag};
    MUST(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
}

static void *work(void *nothing)
{
    MUST(cuCtxSetCurrent(context));
    launch(300000000);
    for (int i = 0; i < 100 && !strcmp(then, "goes_on"); i++) launch(1000);
    MUST(cuEventRecord_ptsz(done, 0));
    pthread_mutex_lock(&lock);
    launched = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    if (strcmp(then, "ends")) pause();
    return nothing;
}

int main(int argc, char **argv)
{
    int (*busy)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_busy");
    CUdevice device;
    pthread_t worker;
    char line[8];
    CHECK(argc == 2 && busy);
    then = argv[1];
    tg_context(0);
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate_v2(&context, 0, device));
    spin = tg_kernel("tg_spin_ns");
    MUST(cuEventCreate(&done, 2));
    pthread_create(&worker, 0, work, 0);
    pthread_mutex_lock(&lock);
    while (!launched) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (!strcmp(then, "ends")) pthread_join(worker, 0);
    puts(busy(0) ? "busy" : "idle");
    fflush(stdout);
    if (!strcmp(then, "context")) MUST(cuCtxDestroy_v2(context));
    while (fgets(line, sizeof line, stdin)) {
        puts(busy(0) ? "busy" : "idle");
        fflush(stdout);
    }
    return 0;
}
