/* A token is a function of what its pages really hold: right while they stand, another one when a page is replaced, and
 * a fault when a page is gone. Prints "ok". */
#include "kv.h"
#include "vmm.h"

enum { PAGES = 4 };

int main(void)
{
    const size_t page = 2 * MIB;
    Prop prop = {1, 0, {1, 0}, 0, {0}};
    Access access = {{1, 0}, 3};
    CUdeviceptr at, table, out, places[PAGES];
    uint64_t handle[PAGES], other, token = 0, right = 7, wrong = 7;
    CUstream stream;
    tg_context(0);
    struct kv_kernels kernels = kv_kernels();
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemAlloc_v2(&table, sizeof places));
    MUST(cuMemAlloc_v2(&out, 8));
    MUST(cuMemAddressReserve(&at, PAGES * page, 0, 0, 0));
    for (int i = 0; i < PAGES; i++) {
        MUST(cuMemCreate(&handle[i], page, &prop, 0));
        MUST(cuMemMap(at + i * page, page, 0, handle[i], 0));
        places[i] = at + i * page + 4096 * i;
    }
    MUST(cuMemSetAccess(at, PAGES * page, &access, 1));
    MUST(cuMemcpyHtoD_v2(table, places, sizeof places));
    /* Neither a copy from pageable memory nor a fill is done when it returns, and this stream waits for no other. */
    MUST(cuCtxSynchronize());
    MUST(kv_store(&kernels, stream, table, PAGES, 99, 1000));
    MUST(kv_token(&kernels, stream, table, PAGES, 7, out, 1000));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(&token, out, 8));
    for (uint64_t i = 0; i < PAGES; i++) right = kv_mix(right, kv_mix(99, i));
    CHECK(token == right);

    /* Another page stands where the third was: defined bytes, but not the right ones. */
    MUST(cuMemCreate(&other, page, &prop, 0));
    MUST(cuMemUnmap(at + 2 * page, page));
    MUST(cuMemRelease(handle[2]));
    MUST(cuMemMap(at + 2 * page, page, 0, other, 0));
    MUST(cuMemSetAccess(at + 2 * page, page, &access, 1));
    MUST(cuMemsetD8_v2(at + 2 * page, 0, page));
    MUST(cuCtxSynchronize());
    MUST(kv_token(&kernels, stream, table, PAGES, 7, out, 1000));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&token, out, 8));
    for (uint64_t i = 0; i < PAGES; i++) wrong = kv_mix(wrong, i == 2 ? 0 : kv_mix(99, i));
    CHECK(token == wrong && token != right);

    MUST(cuMemUnmap(at + 2 * page, page));
    MUST(kv_token(&kernels, stream, table, PAGES, 7, out, 1000));
    IS(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    puts("ok");
    return 0;
}
