/* Whether a call that maps memory waits for a call of another thread that waits for the GPU. One argument: which call the
 * other thread is inside of. Prints "waited" or "passed". */
#include "vmm.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { QUEUE = 1024 };

CUresult cuMemFreeHost(void *);
CUresult cuMemAllocHost_v2(void **, size_t);
CUresult cuModuleUnload(CUmodule);

static CUcontext context;
static CUfunction spin;
static CUstream stream;
static CUdeviceptr plain;
static CUmodule module;
static void *host;
static const char *which;
static atomic_int inside, returned;

static void *other(void *unused)
{
    uint64_t word;
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    inside = (int)gettid();
    if (!strcmp(which, "copy")) MUST(cuMemcpyDtoH_v2(&word, plain, 8));
    else if (!strcmp(which, "free")) MUST(cuMemFree_v2(plain));
    else if (!strcmp(which, "host_free")) MUST(cuMemFreeHost(host));
    else if (!strcmp(which, "unload")) MUST(cuModuleUnload(module));
    else if (!strcmp(which, "launch")) tg_spin(spin, stream, 1000, 2);
    else if (!strcmp(which, "sync")) MUST(cuCtxSynchronize());
    else exit(2);
    returned = 1;
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

int main(int argc, char **argv)
{
    const uint64_t ns = 400000000;
    const size_t page = 2 * MIB;
    Prop prop = {1, 0, {1, 0}, 0, {0}};
    CUdeviceptr at;
    CUdevice device;
    uint64_t handle;
    pthread_t thread;
    if (argc != 2) return 2;
    which = argv[1];
    tg_context(0);
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    spin = tg_kernel("tg_spin_ns");
    MUST(cuModuleLoadData(&module, TG_PTX));
    MUST(cuMemAlloc_v2(&plain, 8 * MIB));
    MUST(cuMemAllocHost_v2(&host, 4096));
    MUST(cuMemAddressReserve(&at, page, 0, 0, 0));
    MUST(cuMemCreate(&handle, page, &prop, 0));
    MUST(cuMemMap(at, page, 0, handle, 0));
    MUST(cuStreamCreate(&stream, 0));
    tg_spin(spin, stream, ns, 1);
    if (!strcmp(which, "launch"))
        for (int i = 1; i < QUEUE; i++) tg_spin(spin, stream, 1000, 1);
    MUST(pthread_create(&thread, 0, other, 0));
    while (!inside || (!sleeps(inside) && !returned)) usleep(1000);
    MUST(cuMemUnmap(at, page));
    puts(returned ? "waited" : "passed");
    fflush(stdout);
    pthread_join(thread, 0);
    return 0;
}
