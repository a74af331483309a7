/* What the small test programs share: the driver API as they use it, and kernels as PTX text, so that
 * the same program runs on the virtual GPU and on a real one. */
#ifndef TG_H
#define TG_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetCount(int *);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphDestroy(CUgraph);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_ = (call);                                                                                       \
        if (must_) {                                                                                                   \
            fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, must_);                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call must answer `code`; what is said must be so. */
#define IS(call, code)                                                                                                 \
    do {                                                                                                               \
        CUresult is_ = (call);                                                                                         \
        if (is_ != (code)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s = %d, not %d\n", __FILE__, __LINE__, #call, is_, (code));                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #what);                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* tg_spin_ns(ns, tag): one thread spins on the global timer. tg_count(counter, ns, tag): the same, then adds one.
 * tg_forever(): never ends. */
static const char TG_PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry tg_spin_ns(.param .u64 ns, .param .u64 tag)\n{\n"
    ".reg .u64 %a, %b, %c, %d;\n.reg .pred %p;\n"
    "ld.param.u64 %a, [ns];\nmov.u64 %b, %globaltimer;\n"
    "L1:\nmov.u64 %c, %globaltimer;\nsub.u64 %d, %c, %b;\nsetp.lt.u64 %p, %d, %a;\n@%p bra L1;\nret;\n}\n"
    ".visible .entry tg_count(.param .u64 counter, .param .u64 ns, .param .u64 tag)\n{\n"
    ".reg .u64 %a, %b, %c, %d, %e, %f;\n.reg .pred %p;\n"
    "ld.param.u64 %e, [counter];\nld.param.u64 %a, [ns];\nmov.u64 %b, %globaltimer;\n"
    "L2:\nmov.u64 %c, %globaltimer;\nsub.u64 %d, %c, %b;\nsetp.lt.u64 %p, %d, %a;\n@%p bra L2;\n"
    "ld.global.u64 %f, [%e];\nadd.u64 %f, %f, 1;\nst.global.u64 [%e], %f;\nret;\n}\n"
    ".visible .entry tg_forever()\n{\nL3:\nbra L3;\n}\n";

static inline CUfunction tg_kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    MUST(cuModuleLoadData(&module, TG_PTX));
    MUST(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline void tg_context(int ordinal)
{
    CUdevice device;
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, ordinal));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
}

static inline void tg_spin(CUfunction spin, CUstream stream, uint64_t ns, uint64_t tag)
{
    void *args[] = {&ns, &tag};
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
}

static inline uint64_t tg_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#endif
