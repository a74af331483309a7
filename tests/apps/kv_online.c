/* An online engine's elastic KV cache, driven by lines on standard input; one answer a line:
 *   reserve N        GRANTED LOWEST HIGHEST
 *   release N        gives the N highest back: RELEASED
 *   use N            says that N blocks hold content: 0
 *   check            writes to every block it may use, and reads back: ok
 *   stray            writes to a block it may not use, which only works while the agent changes nothing, and reads back
 *                    what the last check wrote: ok
 *   flight N         requests in flight: 0
 *   expect N         says that N blocks more will be needed: 0
 *   bench N          nanoseconds of a reserve and release of one block inside the headroom, mean of N
 * It begins with "ready BASE BYTES". */
#include "../../interposer/include/tidegate.h"
#include "vmm.h"

enum { BLOCKS = 33, BLOCK = 2 * MIB };

static struct tg_api tg;
static uint32_t kv, held[BLOCKS], held_count;

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static CUdeviceptr word_of(CUdeviceptr cache, uint32_t block) { return cache + (uint64_t)block * BLOCK + 64; }

static void read_back(CUdeviceptr cache)
{
    uint64_t word;
    for (uint32_t i = 0; i < held_count; i++) {
        MUST(cuMemcpyDtoH_v2(&word, word_of(cache, held[i]), 8));
        if (word != 1000 + held[i]) {
            fprintf(stderr, "block %u holds %#llx, not %u\n", held[i], (unsigned long long)word, 1000 + held[i]);
            exit(3);
        }
    }
    puts("ok");
}

static void check(CUdeviceptr cache)
{
    for (uint32_t i = 0; i < held_count; i++) {
        uint64_t word = 1000 + held[i];
        MUST(cuMemcpyHtoD_v2(word_of(cache, held[i]), &word, 8));
    }
    read_back(cache);
}

static void stray(CUdeviceptr cache)
{
    static const uint64_t word = 7;
    for (uint32_t block = 1, i; block < BLOCKS; block++) {
        for (i = 0; i < held_count && held[i] != block; i++) continue;
        if (i < held_count) continue;
        MUST(cuMemcpyHtoD_v2(word_of(cache, block), &word, 8));
        break;
    }
    read_back(cache);
}

int main(void)
{
    char line[64], what[16];
    CUdeviceptr cache;
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    MUST(tg.attach(0, 0, 1));
    tg_context(0);
    MUST(tg.kv_scope_begin(0, TG_KV_ELASTIC));
    MUST(cuMemAlloc_v2(&cache, (uint64_t)BLOCKS * BLOCK));
    MUST(tg.kv_scope_end());
    MUST(cuMemsetD8_v2(cache, 0, (uint64_t)BLOCKS * BLOCK));
    MUST(cuCtxSynchronize());
    struct tg_kv_region region = {cache, BLOCK, BLOCK, 0, BLOCKS};
    MUST(tg.kv_register(&region, 1, 1, TG_KV_ELASTIC, &kv));
    printf("ready %llu %llu\n", (unsigned long long)cache, (unsigned long long)BLOCKS * BLOCK);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        uint32_t number = 0, granted = 0;
        if (sscanf(line, "%15s %u", what, &number) < 1) continue;
        if (!strcmp(what, "reserve")) {
            MUST(tg.reserve(kv, number, held + held_count, &granted));
            held_count += granted;
            qsort(held, held_count, sizeof *held, by_number);
            printf("%u %u %u\n", granted, held_count ? held[0] : 0, held_count ? held[held_count - 1] : 0);
        } else if (!strcmp(what, "release")) {
            CHECK(number <= held_count);
            MUST(tg.release(kv, held + held_count - number, number));
            held_count -= number;
            printf("%u\n", number);
        } else if (!strcmp(what, "use")) {
            printf("%d\n", tg.usage(kv, number));
        } else if (!strcmp(what, "flight")) {
            printf("%d\n", tg.requests_in_flight(number));
        } else if (!strcmp(what, "expect")) {
            printf("%d\n", tg.expect(kv, number));
        } else if (!strcmp(what, "check")) {
            check(cache);
        } else if (!strcmp(what, "stray")) {
            stray(cache);
        } else if (!strcmp(what, "bench")) {
            uint32_t id;
            uint64_t start = tg_now();
            for (uint32_t i = 0; i < number; i++) {
                MUST(tg.reserve(kv, 1, &id, &granted));
                CHECK(granted == 1);
                MUST(tg.release(kv, &id, 1));
            }
            printf("%llu\n", (unsigned long long)((tg_now() - start) / (number ? number : 1)));
        }
        fflush(stdout);
    }
    return 0;
}
