/* A trainer's arena, driven by lines on standard input; one answer a line:
 *   take BYTES       its address, or a negative errno
 *   give AT          0 or a negative errno
 *   blocks AT        their ids
 *   write AT VALUE   a word of the device's memory: 0
 *   read AT          a word of it
 *   poll             lost blocks, "|", blocks that are back; all lost ones are withheld
 * It begins with "ready BASE". Numbers are decimal. */
#include "../../interposer/include/tidegate.h"
#include "vmm.h"

enum { BLOCKS = 16, SECOND = 24, BLOCK = 2 * MIB };

static void list(const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) printf("%u ", ids[i]);
}

int main(void)
{
    struct tg_api tg;
    char line[128], what[16];
    CUdeviceptr base;
    uint32_t kv, arena, lost[BLOCKS], back[BLOCKS];
    uint64_t step = 0, seq;
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    MUST(tg.attach(0, 0, 1));
    tg_context(0);
    MUST(tg.kv_scope_begin(0, 0));
    MUST(cuMemAlloc_v2(&base, (uint64_t)BLOCKS * BLOCK));
    MUST(tg.kv_scope_end());
    struct tg_kv_region region = {base, BLOCK, BLOCK, 0, BLOCKS};
    CHECK(tg.arena_open(1, SECOND, &arena) == -ENOENT);
    MUST(tg.kv_register(&region, 1, 0, 0, &kv));
    MUST(tg.arena_open(kv, SECOND, &arena));
    CHECK(tg.arena_open(kv, SECOND, &arena) == -EALREADY);
    /* Nothing is taken of what nobody reads the losses of. */
    size_t none_lost = BLOCKS, none_back = BLOCKS;
    MUST(tg.poll(++step, lost, &none_lost, back, &none_back, &seq));
    CHECK(!none_lost && !none_back);
    printf("ready %llu\n", base);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long at = 0, value = 0;
        size_t lost_count = BLOCKS, back_count = BLOCKS;
        if (sscanf(line, "%15s %llu %llu", what, &at, &value) < 1) continue;
        if (!strcmp(what, "take")) {
            uint64_t taken = 0;
            int code = tg.arena_take(arena, at, &taken);
            printf("%lld\n", code ? (long long)code : (long long)taken);
        } else if (!strcmp(what, "give")) {
            printf("%d\n", tg.arena_give(arena, at));
        } else if (!strcmp(what, "blocks")) {
            int code = tg.arena_blocks(arena, at, lost, &lost_count);
            if (code) printf("%d", code);
            else list(lost, lost_count);
            putchar('\n');
        } else if (!strcmp(what, "write")) {
            MUST(cuMemcpyHtoD_v2(at, &value, 8));
            puts("0");
        } else if (!strcmp(what, "read")) {
            MUST(cuMemcpyDtoH_v2(&value, at, 8));
            printf("%llu\n", value);
        } else if (!strcmp(what, "poll")) {
            MUST(tg.poll(++step, lost, &lost_count, back, &back_count, &seq));
            list(lost, lost_count);
            printf("| ");
            list(back, back_count);
            putchar('\n');
            MUST(tg.ack_withheld(seq));
        }
        fflush(stdout);
    }
    return 0;
}
