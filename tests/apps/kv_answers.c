/* A KV scope's allocation answers like the driver's own. One argument: what is asked. Prints "ok". */
#include "../../interposer/include/tidegate.h"
#include "vmm.h"
#include <unistd.h>

CUresult cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr);
CUresult cuPointerGetAttributes(unsigned, const int *, void **, CUdeviceptr);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuIpcGetMemHandle(void *, CUdeviceptr);
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned);

enum { CONTEXT = 1, KIND = 2, POINTER = 3, BUFFER_ID = 7, ORDINAL = 9, LEGACY_IPC = 10, START = 11, SIZE = 12, RDMA = 15 };

static const size_t BYTES = 7 * MIB + 4096;
static struct tg_api tg;

static CUdeviceptr scoped(size_t bytes)
{
    CUdeviceptr at;
    MUST(tg.kv_scope_begin(0, 0));
    MUST(cuMemAlloc_v2(&at, bytes));
    MUST(tg.kv_scope_end());
    return at;
}

static size_t free_now(void)
{
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes;
}

static uint64_t attribute(int which, CUdeviceptr at)
{
    uint64_t value = 0;
    MUST(cuPointerGetAttribute(&value, which, at));
    return value;
}

static void range(void)
{
    CUdeviceptr at = scoped(BYTES), base;
    size_t bytes;
    for (size_t in = 0; in < BYTES; in += MIB + 512) {
        MUST(cuMemGetAddressRange_v2(&base, &bytes, at + in));
        CHECK(base == at && bytes == BYTES);
    }
    MUST(cuMemGetAddressRange_v2(0, &bytes, at));
    CHECK(cuMemGetAddressRange_v2(&base, &bytes, at + 64 * MIB));
}

static void attributes(void)
{
    CUdeviceptr at = scoped(BYTES), other = scoped(BYTES), start = 0;
    CUcontext current, context = 0;
    size_t bytes = 0;
    unsigned kind = 0;
    int which[] = {CONTEXT, KIND, START, SIZE};
    void *into[] = {&context, &kind, &start, &bytes};
    MUST(cuCtxGetCurrent(&current));
    for (size_t in = 0; in < BYTES; in += 3 * MIB / 2) {
        CHECK(attribute(CONTEXT, at + in) == (uint64_t)(uintptr_t)current);
        CHECK(attribute(KIND, at + in) == 2);
        CHECK(attribute(POINTER, at + in) == at + in);
        CHECK(attribute(ORDINAL, at + in) == 0);
        CHECK(attribute(START, at + in) == at);
        CHECK(attribute(SIZE, at + in) == BYTES);
        CHECK(attribute(BUFFER_ID, at + in) == attribute(BUFFER_ID, at));
        CHECK(attribute(LEGACY_IPC, at + in) == 0);
        MUST(cuPointerGetAttributes(4, which, into, at + in));
        CHECK(context == current && kind == 2 && start == at && bytes == BYTES);
    }
    CHECK(attribute(BUFFER_ID, at) != attribute(BUFFER_ID, other));
}

static void freeing(void)
{
    size_t before = free_now();
    CUdeviceptr at = scoped(BYTES), small;
    size_t with = free_now();
    CHECK(before - with >= BYTES);
    IS(cuMemFree_v2(at + 2 * MIB), INVALID_VALUE);
    IS(cuMemFree_v2(at + 8), INVALID_VALUE);
    CHECK(free_now() == with);
    MUST(cuMemFree_v2(at));
    CHECK(free_now() == with + 8 * MIB);
    IS(cuMemFree_v2(at), INVALID_VALUE);
    /* What is smaller than a handle is the driver's own. */
    small = scoped(4096);
    MUST(cuMemFree_v2(small));
}

static void free_waits(void)
{
    CUdeviceptr at = scoped(BYTES);
    CUstream stream;
    uint64_t ns = 100000000, tag = 1;
    void *args[] = {&at, &ns, &tag};
    CUfunction count = tg_kernel("tg_count");
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemsetD8_v2(at, 0, 8));
    MUST(cuCtxSynchronize());
    MUST(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    MUST(cuMemFree_v2(at));
    MUST(cuStreamQuery(stream));
}

static void context(void)
{
    size_t before = free_now();
    CUcontext first, second;
    CUdevice device;
    MUST(cuCtxGetCurrent(&first));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate_v2(&second, 0, device));
    CUdeviceptr at = scoped(BYTES);
    CHECK(attribute(CONTEXT, at) == (uint64_t)(uintptr_t)second);
    MUST(cuCtxDestroy_v2(second));
    MUST(cuCtxSetCurrent(first));
    CHECK(free_now() >= before);
    uint64_t value;
    CHECK(cuPointerGetAttribute(&value, START, at));
}

static void peers(void)
{
    CUcontext first, second;
    CUdevice device;
    uint64_t flags;
    Location other = {1, 1};
    MUST(cuCtxGetCurrent(&first));
    CUdeviceptr before = scoped(BYTES);
    MUST(cuMemGetAccess(&flags, &other, before));
    CHECK(flags == 0);
    MUST(cuDeviceGet(&device, 1));
    MUST(cuDevicePrimaryCtxRetain(&second, device));
    MUST(cuCtxSetCurrent(second));
    MUST(cuCtxEnablePeerAccess(first, 0));
    MUST(cuCtxSetCurrent(first));
    CUdeviceptr after = scoped(BYTES);
    for (size_t in = 0; in < BYTES; in += 2 * MIB) {
        MUST(cuMemGetAccess(&flags, &other, before + in));
        CHECK(flags == 3);
        MUST(cuMemGetAccess(&flags, &other, after + in));
        CHECK(flags == 3);
    }
}

static void rdma(void) { CHECK(attribute(RDMA, scoped(BYTES) + 3 * MIB) == 1); }

static void retain(void)
{
    uint64_t handle;
    IS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)scoped(BYTES)), INVALID_VALUE);
}

/* Registered, then given to others: an error as for mapped memory. Waits for a line before it ends. */
static void shared(void)
{
    char handle[64], line[8];
    uint32_t kv;
    CUdeviceptr at = scoped(8 * MIB);
    struct tg_kv_region region = {at, MIB, MIB, 0, 8};
    MUST(tg.attach(0, 0, 1));
    MUST(tg.kv_register(&region, 1, 1, 0, &kv));
    CHECK(cuIpcGetMemHandle(handle, at + MIB));
    CHECK(cuIpcGetMemHandle(handle, at));
    if (fgets(line, sizeof line, stdin)) return;
}

/* A share between 32 and 48 MiB, once the agent has said so. */
static void less(void)
{
    size_t free_bytes, total;
    do {
        usleep(1000);
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
    } while (total > 48 * MIB || total < 32 * MIB);
    CHECK(free_bytes == total);
}

/* Allocated without a scope, as one of as many ranks as the argument says. Waits for a line before it ends. */
static void guessed(uint32_t world)
{
    char line[8];
    uint32_t kv, lost[8], back[8];
    size_t lost_count = 8, back_count = 8;
    uint64_t seq;
    CUdeviceptr at;
    MUST(cuMemAlloc_v2(&at, 8 * MIB));
    struct tg_kv_region region = {at, MIB, MIB, 0, 8};
    MUST(tg.attach(0, 0, world));
    MUST(tg.kv_register(&region, 1, 1, 0, &kv));
    /* Nothing is taken of what nobody reads of. */
    MUST(tg.poll(1, lost, &lost_count, back, &back_count, &seq));
    if (fgets(line, sizeof line, stdin)) return;
}
static void guessed_alone(void) { guessed(1); }
static void guessed_of_two(void) { guessed(2); }

/* A share of 64 MiB, once the agent has said so. */
static void share(void)
{
    size_t free_bytes, total, all;
    CUdevice device;
    CUdeviceptr at, more;
    MUST(cuDeviceGet(&device, 0));
    do {
        usleep(1000);
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
    } while (total != 64 * MIB);
    CHECK(free_bytes == 64 * MIB);
    MUST(cuDeviceTotalMem_v2(&all, device));
    CHECK(all == 64 * MIB);
    at = scoped(40 * MIB);
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == 24 * MIB && total == 64 * MIB);
    IS(cuMemAlloc_v2(&more, 25 * MIB), OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&more, 24 * MIB));
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == 0);
    MUST(cuMemFree_v2(more));
    MUST(cuMemFree_v2(at));
    CHECK(free_now() == 64 * MIB);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        void (*ask)(void);
    } asks[] = {{"range", range},   {"attributes", attributes}, {"free", freeing}, {"free_waits", free_waits},
                {"context", context}, {"peers", peers},         {"rdma", rdma},    {"retain", retain},
                {"shared", shared}, {"share", share}, {"less", less}, {"guessed", guessed_alone},
                {"guessed_of_two", guessed_of_two}};
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    tg_context(0);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        if (argc == 2 && !strcmp(argv[1], asks[i].name)) {
            asks[i].ask();
            puts("ok");
            return 0;
        }
    return 2;
}
