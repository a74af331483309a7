/* share WAY MIB: takes so much in one way of allocating, in pieces of 2 MiB, or as much as it is given.
 * Says "got MIB of MIB", the second being what cuMemGetInfo said there is; then, for each line, gives all back and says "freed". */
#include "vmm.h"
#include <unistd.h>


CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, void *, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, void *, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuDeviceGetDefaultMemPool(void **, CUdevice);

enum { PIECE = 2 * MIB, MOST = 1024 };

static CUstream stream;
static CUdeviceptr at[MOST];
static uint64_t handle[MOST];

static int is(const char *way, const char *name) { return !strcmp(way, name); }

static CUresult create(int nth)
{
    const Prop prop = {1, 0, {1, 0}, 0, {0}};
    const Access access = {{1, 0}, 3};
    CUresult result = cuMemCreate(&handle[nth], PIECE, &prop, 0);
    if (result) return result;
    MUST(cuMemAddressReserve(&at[nth], PIECE, 0, 0, 0));
    MUST(cuMemMap(at[nth], PIECE, 0, handle[nth], 0));
    MUST(cuMemSetAccess(at[nth], PIECE, &access, 1));
    /* What is mapped stays without its handle. */
    if (nth % 2) MUST(cuMemRelease(handle[nth]));
    return 0;
}

static CUresult take(const char *way, int nth)
{
    size_t pitch;
    void *pool;
    CUdevice device;
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    if (is(way, "alloc")) return cuMemAlloc_v2(&at[nth], PIECE);
    if (is(way, "async")) return cuMemAllocAsync(&at[nth], PIECE, stream);
    if (is(way, "async_ptsz")) return cuMemAllocAsync_ptsz(&at[nth], PIECE, stream);
    if (is(way, "pool")) return cuMemAllocFromPoolAsync(&at[nth], PIECE, pool, stream);
    if (is(way, "pool_ptsz")) return cuMemAllocFromPoolAsync_ptsz(&at[nth], PIECE, pool, stream);
    if (is(way, "pitch")) return cuMemAllocPitch_v2(&at[nth], &pitch, 1 << 16, PIECE >> 16, 4);
    if (is(way, "managed")) return cuMemAllocManaged(&at[nth], PIECE, 1);
    if (is(way, "create")) return create(nth);
    exit(2);
}

static void give(const char *way, int nth)
{
    if (is(way, "create")) {
        MUST(cuMemUnmap(at[nth], PIECE));
        if (nth % 2 == 0) MUST(cuMemRelease(handle[nth]));
    } else if (strstr(way, "async") || strstr(way, "pool")) {
        MUST(cuMemFreeAsync(at[nth], stream));
        MUST(cuStreamSynchronize(stream));
    } else {
        MUST(cuMemFree_v2(at[nth]));
    }
}

int main(int argc, char **argv)
{
    char line[8];
    size_t free_bytes, total, whole;
    int got = 0, most = argc == 3 ? atoi(argv[2]) / 2 : 0;
    tg_context(0);
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemGetInfo_v2(&free_bytes, &whole));
    /* Until its share has come. */
    do {
        usleep(1000);
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
    } while (total == whole && getenv("SHARED"));
    while (got < most && got < MOST) {
        CUresult result = take(argv[1], got);
        if (result == OUT_OF_MEMORY) break;
        MUST(result);
        MUST(cuMemsetD8_v2(at[got++], 1, 4096));
    }
    printf("got %d of %zu\n", got * 2, total / MIB);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        while (got > 0) give(argv[1], --got);
        puts("freed");
        fflush(stdout);
    }
    return 0;
}
