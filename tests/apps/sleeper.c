/* sleeper WAY MIB: an online engine with so much of weights in pieces of 2 MiB, by "alloc" or by "create" (asleep: unmapped
 * and released, the addresses kept; awake: created and mapped at the same addresses, as engines' sleep mode does).
 * Lines on standard input: sleep, wake. It answers with the result of the driver; it begins with that of a wake. */
#include "vmm.h"

enum { PIECE = 2 * MIB, MOST = 256 };

static CUdeviceptr at[MOST];
static uint64_t handle[MOST];
static int pieces, create;

static CUresult wake_one(int nth)
{
    const Prop prop = {1, 0, {1, 0}, 0, {0}};
    const Access access = {{1, 0}, 3};
    if (!create) return cuMemAlloc_v2(&at[nth], PIECE);
    CUresult result = cuMemCreate(&handle[nth], PIECE, &prop, 0);
    if (result) return result;
    MUST(cuMemMap(at[nth], PIECE, 0, handle[nth], 0));
    MUST(cuMemSetAccess(at[nth], PIECE, &access, 1));
    return 0;
}

static void sleep_one(int nth)
{
    if (create) {
        MUST(cuMemUnmap(at[nth], PIECE));
        MUST(cuMemRelease(handle[nth]));
    } else {
        MUST(cuMemFree_v2(at[nth]));
    }
}

static CUresult wake(void)
{
    CUresult result = 0;
    int nth = 0;
    while (nth < pieces && !(result = wake_one(nth))) nth++;
    for (int i = 0; i < nth && !result; i++) MUST(cuMemsetD8_v2(at[i], 7, PIECE));
    while (result && nth > 0) sleep_one(--nth);
    return result;
}

static void answer(CUresult result)
{
    printf("%d\n", result);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[16];
    CHECK(argc == 3);
    create = !strcmp(argv[1], "create");
    pieces = atoi(argv[2]) / 2;
    tg_context(0);
    for (int i = 0; i < pieces && create; i++) MUST(cuMemAddressReserve(&at[i], PIECE, 0, 0, 0));
    answer(wake());
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "wake", 4)) {
            answer(wake());
        } else {
            /* What it gives back nothing uses any more: an unmap waits for nobody. */
            MUST(cuCtxSynchronize());
            for (int i = 0; i < pieces; i++) sleep_one(i);
            answer(0);
        }
    }
    return 0;
}
