/* Whether a call that maps memory waits for a call of another thread that waits for the GPU. Two arguments: which call the
 * other thread is inside of, and "passes" or "waits". The GPU's work ends when this program says so, and it says so when it
 * has seen what it looks for: how fast anything is decides nothing. Where mapping waits though it should pass, the program
 * does not end. */
#include "vmm.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

enum { QUEUE = 1024, PAGE = 2 * MIB };

CUresult cuMemFreeHost(void *);
CUresult cuMemAllocHost_v2(void **, size_t);
CUresult cuModuleUnload(CUmodule);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

static CUcontext context;
static CUfunction spin;
static CUstream stream;
static CUdeviceptr plain, page;
static CUmodule module;
static CUevent event;
static void *host;
static const char *which;
static sem_t gate;

/* A thread inside a call. */
struct caller {
    pthread_t thread;
    atomic_int tid, returned;
};

static void hold(void *unused)
{
    (void)unused;
    while (sem_wait(&gate)) {}
}

static void *unmap(void *argument)
{
    struct caller *me = argument;
    MUST(cuCtxSetCurrent(context));
    me->tid = (int)gettid();
    MUST(cuMemUnmap(page, PAGE));
    me->returned = 1;
    return 0;
}

static void *other(void *argument)
{
    struct caller *me = argument;
    uint64_t word;
    CUmodule fresh;
    MUST(cuCtxSetCurrent(context));
    me->tid = (int)gettid();
    if (!strcmp(which, "copy")) MUST(cuMemcpyDtoH_v2(&word, plain, 8));
    else if (!strcmp(which, "free")) MUST(cuMemFree_v2(plain));
    else if (!strcmp(which, "host_free")) MUST(cuMemFreeHost(host));
    else if (!strcmp(which, "unload")) MUST(cuModuleUnload(module));
    else if (!strcmp(which, "launch")) tg_spin(spin, stream, 1000, 2);
    else if (!strcmp(which, "sync")) MUST(cuCtxSynchronize());
    else if (!strcmp(which, "load")) MUST(cuModuleLoadData(&fresh, TG_PTX));
    else if (!strcmp(which, "stream")) MUST(cuStreamDestroy_v2(stream));
    else if (!strcmp(which, "event")) MUST(cuEventDestroy_v2(event));
    else exit(2);
    me->returned = 1;
    return 0;
}

/* Whether a thread sleeps in the kernel. */
static int sleeps(int tid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%*d %*s %c", &state) != 1) state = 0;
    fclose(file);
    return state == 'S';
}

/* Until the call waits or has returned: asleep for a moment is not yet waiting. */
static void settle(struct caller *caller)
{
    int asleep = 0;
    while (!caller->returned && asleep < 5) {
        usleep(1000);
        asleep = caller->tid && sleeps(caller->tid) ? asleep + 1 : 0;
    }
}

int main(int argc, char **argv)
{
    Prop prop = {1, 0, {1, 0}, 0, {0}};
    struct caller first = {0}, second = {0};
    CUdevice device;
    uint64_t handle;
    if (argc != 3) return 2;
    which = argv[1];
    MUST(sem_init(&gate, 0, 0));
    tg_context(0);
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    spin = tg_kernel("tg_spin_ns");
    MUST(cuModuleLoadData(&module, TG_PTX));
    MUST(cuMemAlloc_v2(&plain, 8 * MIB));
    MUST(cuMemAllocHost_v2(&host, 4096));
    MUST(cuMemAddressReserve(&page, PAGE, 0, 0, 0));
    MUST(cuMemCreate(&handle, PAGE, &prop, 0));
    MUST(cuMemMap(page, PAGE, 0, handle, 0));
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuLaunchHostFunc(stream, hold, 0));
    MUST(cuEventCreate(&event, 0));
    if (!strcmp(which, "event")) MUST(cuEventRecord(event, stream));
    if (!strcmp(which, "launch"))
        for (int i = 1; i < QUEUE; i++) tg_spin(spin, stream, 1000, 1);
    MUST(pthread_create(&first.thread, 0, other, &first));
    settle(&first);
    CHECK(!first.returned);
    MUST(pthread_create(&second.thread, 0, unmap, &second));
    if (!strcmp(argv[2], "passes")) {
        MUST(pthread_join(second.thread, 0));
        CHECK(!first.returned);
        sem_post(&gate);
    } else {
        settle(&second);
        CHECK(!second.returned);
        sem_post(&gate);
        MUST(pthread_join(second.thread, 0));
    }
    MUST(pthread_join(first.thread, 0));
    return 0;
}
