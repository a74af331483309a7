/* One program that uses what most programs use: a context, memory, copies, kernels with results, streams, events,
 * host functions, a captured graph, and the errors it should get. Prints "ok" when all of it did what it should. */
#include "tg.h"

CUresult cuDriverGetVersion(int *);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemFreeHost(void *);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
CUresult cuEventQuery(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuGetExportTable(const void **, const void *);
CUresult cuMulticastCreate(void *, void *);

static const char ADD_PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .entry tg_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n)\n"
                              "{\nret;\n}\n";

enum { N = 100000 };

static void add(CUfunction f, CUstream stream, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c)
{
    uint64_t n = N;
    void *args[] = {&a, &b, &c, &n};
    MUST(cuLaunchKernel(f, (N + 255) / 256, 1, 1, 256, 1, 1, 0, stream, args, 0));
}

static void called(void *at) { ++*(volatile int *)at; }

int main(void)
{
    int version = 0, count = 0, calls = 0;
    CUdevice device = -1;
    CUmodule module;
    CUfunction f, spin;
    CUdeviceptr a, b, c;
    CUstream s, t;
    CUevent e1, e2;
    CUgraph graph;
    CUgraphExec exec;
    float *host, ms = 0;
    const char *name;
    const void *table;
    IS(cuDeviceGetCount(&count), 3);
    MUST(cuInit(0));
    MUST(cuDriverGetVersion(&version));
    CHECK(version == 13050);
    MUST(cuDeviceGetCount(&count));
    CHECK(count >= 1);
    IS(cuStreamCreate(&s, 0), 201);
    tg_context(0);
    MUST(cuCtxGetDevice(&device));
    CHECK(device == 0);
    IS(cuGetExportTable(&table, "0123456789abcdef"), 500);
    IS(cuMulticastCreate(0, 0), 801);
    MUST(cuGetErrorName(801, &name));
    CHECK(!strcmp(name, "CUDA_ERROR_NOT_SUPPORTED"));

    IS(cuModuleLoadData(&module, "no ptx"), 218);
    MUST(cuModuleLoadData(&module, ADD_PTX));
    IS(cuModuleGetFunction(&f, module, "tg_sub"), 500);
    MUST(cuModuleGetFunction(&f, module, "tg_add"));
    MUST(cuMemAlloc_v2(&a, N * sizeof(float)));
    MUST(cuMemAlloc_v2(&b, N * sizeof(float)));
    MUST(cuMemAlloc_v2(&c, N * sizeof(float)));
    MUST(cuMemHostAlloc((void **)&host, N * sizeof(float), 0));
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    MUST(cuMemcpyHtoD_v2(a, host, N * sizeof(float)));
    MUST(cuMemsetD32_v2(b, 0x40000000, N)); /* 2.0f */

    /* The legacy stream: copy, fill, kernel and copy back in order. */
    add(f, 0, a, b, c);
    memset(host, 0, N * sizeof(float));
    MUST(cuMemcpyDtoH_v2(host, c, N * sizeof(float)));
    for (int i = 0; i < N; i++)
        CHECK(host[i] == (float)i + 2);

    /* Two streams joined by an event; the second must see the first's results. */
    MUST(cuStreamCreate(&s, 1));
    MUST(cuStreamCreate(&t, 1));
    MUST(cuEventCreate(&e1, 0));
    MUST(cuEventCreate(&e2, 0));
    IS(cuEventQuery(e1), 0);
    MUST(cuEventRecord(e1, s));
    spin = tg_kernel("tg_spin_ns");
    tg_spin(spin, s, 3000000, 1);
    add(f, s, c, b, a);
    MUST(cuEventRecord(e2, s));
    IS(cuEventQuery(e2), 600);
    IS(cuStreamQuery(s), 600);
    MUST(cuStreamWaitEvent(t, e2, 0));
    MUST(cuMemcpyDtoHAsync_v2(host, a, N * sizeof(float), t));
    MUST(cuLaunchHostFunc(t, called, &calls));
    MUST(cuStreamSynchronize(t));
    CHECK(calls == 1);
    for (int i = 0; i < N; i++)
        CHECK(host[i] == (float)i + 4);
    MUST(cuEventSynchronize(e2));
    MUST(cuEventElapsedTime(&ms, e1, e2));
    CHECK(ms >= 3 && ms < 5000);

    /* A graph: nothing runs while it is captured, each launch runs it once. */
    MUST(cuStreamBeginCapture_v2(s, 0));
    add(f, s, a, b, a);
    MUST(cuLaunchHostFunc(s, called, &calls));
    MUST(cuStreamEndCapture(s, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamSynchronize(s));
    CHECK(calls == 1);
    for (int i = 0; i < 10; i++)
        MUST(cuGraphLaunch(exec, s));
    MUST(cuStreamSynchronize(s));
    CHECK(calls == 11);
    MUST(cuMemcpyDtoH_v2(host, a, N * sizeof(float)));
    for (int i = 0; i < N; i++)
        CHECK(host[i] == (float)i + 24);
    MUST(cuGraphExecDestroy(exec));

    /* More launches than a ring has places. */
    for (int i = 0; i < 3000; i++)
        tg_spin(spin, i % 2 ? s : t, 0, (uint64_t)i);
    MUST(cuCtxSynchronize());

    MUST(cuEventDestroy_v2(e1));
    IS(cuEventQuery(e1), 400);
    MUST(cuStreamDestroy_v2(s));
    IS(cuStreamSynchronize(s), 400);
    MUST(cuMemFree_v2(a));
    IS(cuMemFree_v2(a), 1);
    MUST(cuMemFree_v2(b));
    MUST(cuMemFree_v2(c));
    MUST(cuMemFreeHost(host));
    puts("ok");
    return 0;
}
