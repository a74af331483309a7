/* An offline engine that has much to say: large BLOCKS REQUESTS EACH. Its cache has so many blocks of one 2 MiB handle,
 * and so many requests hold the same EACH blocks, the last ones, as those of a batch with one long prompt do.
 *
 * Prints "ready" and ends with its standard input. */
#include "../../interposer/include/tidegate.h"
#include "vmm.h"

enum { BLOCK = 2 * MIB };

int main(int argc, char **argv)
{
    struct tg_api tg;
    CUdeviceptr cache;
    uint32_t kv;
    CHECK(argc == 4 && tg_open(&tg) == TG_ABI_VERSION);
    uint32_t blocks = (uint32_t)atoi(argv[1]), requests = (uint32_t)atoi(argv[2]), each = (uint32_t)atoi(argv[3]);
    CHECK(each < blocks);
    MUST(tg.attach(0, 0, 1));
    tg_context(0);
    MUST(tg.kv_scope_begin(0, 0));
    MUST(cuMemAlloc_v2(&cache, (uint64_t)blocks * BLOCK));
    MUST(tg.kv_scope_end());
    struct tg_kv_region region = {cache, BLOCK, BLOCK, 0, blocks};
    MUST(tg.kv_register(&region, 1, 0, 0, &kv));
    uint32_t *ids = malloc(((size_t)each + 1) * sizeof *ids);
    for (uint32_t i = 0; i < each; i++) ids[i] = blocks - each + i;
    for (uint32_t r = 0; r < requests; r++) MUST(tg.publish_request(r, each * 16, ids, each));
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
