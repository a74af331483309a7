/* Default streams, resolution, peers, CUDA_VISIBLE_DEVICES and fork, as the driver API's manual has them.
 * Wants two GPUs. Prints "ok". */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
CUresult cuStreamQuery_ptsz(CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void **, void **);
CUresult cuMemcpyPeer(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);

enum { NOT_READY = 600, NOT_INITIALIZED = 3, LONG = 30000000 };

static CUfunction spin;
static CUcontext context;

static void *own_stream_is_idle(void *nothing)
{
    (void)nothing;
    MUST(cuCtxSetCurrent(context));
    IS(cuStreamQuery_ptsz(0), 0);
    return 0;
}

static void default_streams(void)
{
    CUstream blocking, free;
    pthread_t thread;
    uint64_t ns = LONG, tag = 0;
    void *args[] = {&ns, &tag};
    MUST(cuStreamCreate(&blocking, 0));
    MUST(cuStreamCreate(&free, 1));

    /* Work of the legacy stream waits for blocking streams and is waited for by them, and not by the others. */
    tg_spin(spin, blocking, LONG, 1);
    tg_spin(spin, 0, 0, 2);
    tg_spin(spin, free, 0, 3);
    MUST(cuStreamSynchronize(free));
    IS(cuStreamQuery(0), NOT_READY);
    IS(cuStreamQuery(blocking), NOT_READY);
    MUST(cuStreamSynchronize(0));
    IS(cuStreamQuery(blocking), 0);
    tg_spin(spin, 0, LONG, 4);
    tg_spin(spin, blocking, 0, 5);
    IS(cuStreamQuery(blocking), NOT_READY);
    MUST(cuStreamSynchronize(blocking));
    IS(cuStreamQuery(0), 0);

    /* A thread's own stream is its own, and synchronises with the legacy stream. */
    MUST(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
    IS(cuStreamQuery_ptsz(0), NOT_READY);
    IS(cuStreamQuery((CUstream)2), NOT_READY);
    pthread_create(&thread, 0, own_stream_is_idle, 0);
    pthread_join(thread, 0);
    IS(cuStreamQuery(0), NOT_READY);
    MUST(cuStreamSynchronize((CUstream)1));
    IS(cuStreamQuery_ptsz(0), 0);
    MUST(cuStreamSynchronize_ptsz(0));
    MUST(cuStreamDestroy_v2(blocking));
    MUST(cuStreamDestroy_v2(free));
}

static void resolution(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *at, *again;
    int status = -1;
    CHECK(library);
    IS(cuGetProcAddress_v2("cuLaunchKernel", &at, 7000, 2, &status), 0);
    CHECK(status == 0 && at == dlsym(library, "cuLaunchKernel_ptsz"));
    IS(cuGetProcAddress_v2("cuLaunchKernel", &at, 7000, 1, &status), 0);
    CHECK(status == 0 && at == dlsym(library, "cuLaunchKernel"));
    IS(cuGetProcAddress_v2("cuLaunchKernelEx", &at, 11000, 0, &status), 0);
    CHECK(status == 2 && !at);
    IS(cuGetProcAddress_v2("cuLaunchCooperativeKernel", &at, 9000, 1, &status), 0);
    CHECK(at == dlsym(library, "cuLaunchCooperativeKernel"));
    IS(cuGetProcAddress_v2("cuNoSuchThing", &at, 13000, 0, &status), 0);
    CHECK(status == 1 && !at);
    IS(cuGetProcAddress_v2("cuInit", &at, 13060, 0, &status), 1);
    IS(cuGetProcAddress_v2("cuInit", 0, 13000, 0, &status), 1);
    IS(cuGetProcAddress_v2("cuInit", &at, 13000, 0, 0), 0);
    IS(cuGetProcAddress_v2("cuGetProcAddress", &at, 13000, 0, &status), 0);
    IS(((CUresult (*)(const char *, void **, int, uint64_t, int *))at)("cuGetProcAddress", &again, 13000, 0, &status), 0);
    CHECK(again == at);
}

static void two_gpus(void)
{
    CUcontext second, popped;
    CUdeviceptr here, there;
    uint64_t word = 0;
    MUST(cuMemAlloc_v2(&here, 4096));
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxPushCurrent_v2(second));
    MUST(cuMemAlloc_v2(&there, 4096));
    MUST(cuMemsetD8_v2(there, 0x5a, 4096));
    MUST(cuCtxSynchronize());
    MUST(cuCtxPopCurrent_v2(&popped));
    CHECK(popped == second);
    MUST(cuMemcpyPeer(here, context, there, second, 4096));
    MUST(cuMemcpyDtoH_v2(&word, here + 4088, 8));
    CHECK(word == 0x5a5a5a5a5a5a5a5au);
    MUST(cuDevicePrimaryCtxRelease_v2(1));
    IS(cuCtxSetCurrent(second), 709);
}

static void forked(void)
{
    int status = -1;
    CUstream stream;
    MUST(cuStreamCreate(&stream, 1));
    pid_t child = fork();
    if (!child) {
        CUcontext any;
        CUdeviceptr at;
        IS(cuInit(0), NOT_INITIALIZED);
        IS(cuCtxSynchronize(), NOT_INITIALIZED);
        IS(cuMemAlloc_v2(&at, 64), NOT_INITIALIZED);
        IS(cuStreamSynchronize(stream), NOT_INITIALIZED);
        IS(cuDevicePrimaryCtxRetain(&any, 0), NOT_INITIALIZED);
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    tg_spin(spin, stream, 0, 9);
    MUST(cuStreamSynchronize(stream));
}

/* A child of a process that has not called cuInit has a driver of its own. */
static void forked_before_init(void)
{
    int status = -1, count = 0;
    pid_t child = fork();
    if (!child) {
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        MUST(cuInit(0));
        MUST(cuDeviceGetCount(&count));
        CHECK(count == 1);
        tg_context(0);
        spin = tg_kernel("tg_spin_ns");
        tg_spin(spin, 0, 0, 1);
        MUST(cuCtxSynchronize());
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(void)
{
    int count = 0;
    forked_before_init();
    tg_context(0);
    MUST(cuDeviceGetCount(&count));
    CHECK(count == 2);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    spin = tg_kernel("tg_spin_ns");
    default_streams();
    resolution();
    two_gpus();
    forked();
    puts("ok");
    return 0;
}
