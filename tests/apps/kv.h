/* Tokens from a paged KV cache: what tg_kv_token answers is a function of what the pages really hold.
 *
 * tg_kv_store(table, count, value, ns) writes kv_mix(value, i) to the i-th address of a table on the device;
 * tg_kv_token(table, count, seed, out, ns) folds the words at those addresses into `seed` and stores the result. Both
 * take `ns` before they touch anything. */
#ifndef TG_KV_H
#define TG_KV_H
#include "tg.h"

static const char KV_PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry tg_kv_store(.param .u64 table, .param .u64 count, .param .u64 value, .param .u64 ns)\n{\n"
    ".reg .u64 %t, %n, %v, %a, %b, %c, %d, %i, %x, %y, %p;\n.reg .pred %q;\n"
    "ld.param.u64 %a, [ns];\nmov.u64 %b, %globaltimer;\n"
    "L1:\nmov.u64 %c, %globaltimer;\nsub.u64 %d, %c, %b;\nsetp.lt.u64 %q, %d, %a;\n@%q bra L1;\n"
    "ld.param.u64 %t, [table];\nld.param.u64 %n, [count];\nld.param.u64 %v, [value];\nmov.u64 %i, 0;\n"
    "L2:\nsetp.ge.u64 %q, %i, %n;\n@%q bra L3;\n"
    "ld.global.u64 %p, [%t];\nxor.b64 %x, %v, %i;\nmul.lo.u64 %x, %x, 0x9e3779b97f4a7c15;\nshr.u64 %y, %x, 29;\n"
    "xor.b64 %x, %x, %y;\nst.global.u64 [%p], %x;\nadd.u64 %t, %t, 8;\nadd.u64 %i, %i, 1;\nbra L2;\nL3:\nret;\n}\n"
    ".visible .entry tg_kv_token(.param .u64 table, .param .u64 count, .param .u64 seed, .param .u64 out, "
    ".param .u64 ns)\n{\n"
    ".reg .u64 %t, %n, %v, %a, %b, %c, %d, %i, %x, %y, %p, %o;\n.reg .pred %q;\n"
    "ld.param.u64 %a, [ns];\nmov.u64 %b, %globaltimer;\n"
    "L4:\nmov.u64 %c, %globaltimer;\nsub.u64 %d, %c, %b;\nsetp.lt.u64 %q, %d, %a;\n@%q bra L4;\n"
    "ld.param.u64 %t, [table];\nld.param.u64 %n, [count];\nld.param.u64 %v, [seed];\nmov.u64 %i, 0;\n"
    "L5:\nsetp.ge.u64 %q, %i, %n;\n@%q bra L6;\n"
    "ld.global.u64 %p, [%t];\nld.global.u64 %x, [%p];\nxor.b64 %x, %v, %x;\nmul.lo.u64 %x, %x, 0x9e3779b97f4a7c15;\n"
    "shr.u64 %y, %x, 29;\nxor.b64 %v, %x, %y;\nadd.u64 %t, %t, 8;\nadd.u64 %i, %i, 1;\nbra L5;\n"
    "L6:\nld.param.u64 %o, [out];\nst.global.u64 [%o], %v;\nret;\n}\n";

struct kv_kernels {
    CUfunction store, token;
};

static inline struct kv_kernels kv_kernels(void)
{
    struct kv_kernels kernels;
    CUmodule module;
    MUST(cuModuleLoadData(&module, KV_PTX));
    MUST(cuModuleGetFunction(&kernels.store, module, "tg_kv_store"));
    MUST(cuModuleGetFunction(&kernels.token, module, "tg_kv_token"));
    return kernels;
}

static inline uint64_t kv_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

static inline CUresult kv_store(const struct kv_kernels *kernels, CUstream stream, CUdeviceptr table, uint64_t count,
                                uint64_t value, uint64_t ns)
{
    void *args[] = {&table, &count, &value, &ns};
    return cuLaunchKernel(kernels->store, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
}

static inline CUresult kv_token(const struct kv_kernels *kernels, CUstream stream, CUdeviceptr table, uint64_t count,
                                uint64_t seed, CUdeviceptr out, uint64_t ns)
{
    void *args[] = {&table, &count, &seed, &out, &ns};
    return cuLaunchKernel(kernels->token, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
}
#endif
