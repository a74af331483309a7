/* Virtual memory management as engines use it: reserve, create, map, give access, use, take away, and the mistakes
 * that are refused. Memory that is unmapped faults a kernel that touches it. Prints "ok". */
#include "vmm.h"

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);

int main(void)
{
    size_t page = 0, free_before = 0, free_after = 0, total = 0;
    Prop prop = {1, 0, {1, 0}, 0, {0}};
    Access access = {{1, 0}, 3}, none = {{1, 0}, 0};
    CUdeviceptr at, other;
    uint64_t one, two, again, flags, word = 0;
    CUstream stream;
    unsigned kind = 0;
    tg_context(0);
    CUfunction count = tg_kernel("tg_count");
    MUST(cuMemGetAllocationGranularity(&page, &prop, 0));
    CHECK(page == 2 * MIB);
    MUST(cuMemAddressReserve(&at, 8 * page, 0, 0, 0));
    CHECK(at % page == 0);
    IS(cuMemAddressReserve(&other, page + 1, 0, 0, 0), INVALID_VALUE);
    IS(cuMemCreate(&one, page - 1, &prop, 0), INVALID_VALUE);
    MUST(cuMemCreate(&one, page, &prop, 0));
    MUST(cuMemCreate(&two, 2 * page, &prop, 0));
    IS(cuMemSetAccess(at, page, &access, 1), INVALID_VALUE);
    MUST(cuMemMap(at, page, 0, one, 0));
    IS(cuMemMap(at, page, 0, two, 0), INVALID_VALUE);
    IS(cuMemMap(at + 7 * page, 2 * page, 0, two, 0), INVALID_VALUE);
    MUST(cuMemMap(at + page, 2 * page, 0, two, 0));
    MUST(cuMemGetAccess(&flags, &access.location, at));
    CHECK(flags == 0);
    MUST(cuMemSetAccess(at, 3 * page, &access, 1));
    MUST(cuMemGetAccess(&flags, &access.location, at + page));
    CHECK(flags == 3);
    MUST(cuPointerGetAttribute(&kind, 2, at + 5));
    CHECK(kind == 2);

    /* What is written through one mapping is there in another mapping of the same handle. */
    MUST(cuMemsetD8_v2(at, 0xab, page));
    MUST(cuMemMap(at + 4 * page, page, 0, one, 0));
    MUST(cuMemSetAccess(at + 4 * page, page, &access, 1));
    MUST(cuMemcpyDtoH_v2(&word, at + 5 * page - 8, 8));
    CHECK(word == 0xababababababababu);

    /* A handle outlives its release while it is mapped, and is found again from the address. */
    MUST(cuMemRelease(one));
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 16)));
    CHECK(again == one);
    MUST(cuMemRelease(again));
    MUST(cuMemUnmap(at + 4 * page, page));
    IS(cuMemUnmap(at + 4 * page, page), INVALID_VALUE);
    IS(cuMemAddressFree(at, 8 * page), INVALID_VALUE);
    MUST(cuMemUnmap(at, page));
    IS(cuMemRelease(one), INVALID_VALUE);
    MUST(cuMemUnmap(at + page, 2 * page));
    MUST(cuMemMap(at, 2 * page, 0, two, 0));
    MUST(cuMemSetAccess(at, 2 * page, &access, 1));

    /* Stream-ordered memory is usable at once and comes back when its stream has passed it. */
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemGetInfo_v2(&free_before, &total));
    MUST(cuMemAllocAsync(&other, 4 * MIB, stream));
    MUST(cuMemsetD8Async(other, 1, 4 * MIB, stream));
    MUST(cuMemFreeAsync(other, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuCtxSynchronize());
    MUST(cuMemGetInfo_v2(&free_after, &total));
    CHECK(free_after == free_before);
    IS(cuMemAlloc_v2(&other, total + 1), OUT_OF_MEMORY);

    /* A kernel that touches memory without access ends the context, and it stays ended. */
    uint64_t ns = 1000, tag = 1;
    void *args[] = {&at, &ns, &tag};
    MUST(cuMemsetD8_v2(at, 0, 8));
    MUST(cuCtxSynchronize());
    MUST(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(&word, at, 8));
    CHECK(word == 1);
    MUST(cuMemSetAccess(at, 2 * page, &none, 1));
    MUST(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    IS(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    IS(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    IS(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0), ILLEGAL_ADDRESS);
    puts("ok");
    return 0;
}
