/* starter PERCENT: an engine that starts as vLLM does: it looks at the GPU's memory, loads its weights, looks again, and makes
 * its cache of PERCENT of what there is, less its weights and what is less free than its weights explain.
 *
 * Lines on standard input, each with one answer:
 *   free      MiB that are free as it is shown
 *   look      looks for the first time; MiB in all, or 0 if PERCENT of them are not free: vLLM does not start then
 *   load MIB  loads so much, in pieces of 2 MiB; the driver's result
 *   size      looks again; MiB of its cache, also less than none
 *   make      allocates the cache, registers it if it is offline, and reads its losses; the driver's result
 *   online, offline  the role that the agent gave; answered once it is that one, and, with SHARED set, its share has come */
#include "../../interposer/include/tidegate.h"
#include "vmm.h"
#include <unistd.h>

enum { PIECE = 2 * MIB };

static struct tg_api tg;
static size_t free_first, total;
static int64_t loaded, size;
static int is_ours;

static CUresult take(int64_t bytes)
{
    CUdeviceptr at;
    CUresult result = 0;
    for (; bytes > 0 && !result; bytes -= PIECE) result = cuMemAlloc_v2(&at, PIECE);
    return result;
}

static int64_t look_again(int percent)
{
    size_t free_now, total_now;
    MUST(cuMemGetInfo_v2(&free_now, &total_now));
    int64_t used_first = (int64_t)(total - free_first), used_now = (int64_t)(total_now - free_now);
    int64_t others = used_now - used_first - loaded;
    return (int64_t)(total / 100) * percent - loaded - others;
}

/* Until it is shown less than the GPU has, which SHARED says in MiB. */
static void await_share(void)
{
    const char *shared = getenv("SHARED");
    size_t whole = shared ? (size_t)atoi(shared) * MIB : 0, left, now = whole;
    while (shared && now >= whole) {
        MUST(cuMemGetInfo_v2(&left, &now));
        usleep(1000);
    }
}

/* An online engine's is plain memory here, in pieces: each of them has to be there. */
static CUresult make(void)
{
    CUdeviceptr cache;
    uint32_t kv, lost[1], back[1];
    size_t lost_count = 0, back_count = 0;
    uint64_t seq;
    int64_t bytes = size / PIECE * PIECE;
    if (bytes <= 0) return OUT_OF_MEMORY;
    if (!is_ours || tg.role(0) != TG_ROLE_OFFLINE) return take(bytes);
    MUST(tg.attach(0, 0, 1));
    MUST(tg.poll(0, lost, &lost_count, back, &back_count, &seq));
    MUST(tg.kv_scope_begin(0, 0));
    CUresult result = cuMemAlloc_v2(&cache, (size_t)bytes);
    MUST(tg.kv_scope_end());
    if (result) return result;
    struct tg_kv_region region = {cache, PIECE, PIECE, 0, (uint32_t)(bytes / PIECE)};
    MUST(tg.kv_register(&region, 1, 1, 0, &kv));
    return 0;
}

int main(int argc, char **argv)
{
    char line[32];
    CHECK(argc == 2);
    is_ours = tg_open(&tg) == TG_ABI_VERSION;
    tg_context(0);
    while (fgets(line, sizeof line, stdin)) {
        int64_t answer = 0;
        if (!strncmp(line, "free", 4)) {
            size_t left, all;
            MUST(cuMemGetInfo_v2(&left, &all));
            answer = (int64_t)(left / MIB);
        } else if (!strncmp(line, "look", 4)) {
            MUST(cuMemGetInfo_v2(&free_first, &total));
            if (free_first / 100 >= total / 10000 * (size_t)atoi(argv[1])) answer = (int64_t)(total / MIB);
        } else if (!strncmp(line, "load", 4)) {
            int64_t part = (int64_t)atoi(line + 5) * MIB;
            answer = take(part);
            loaded += part;
        } else if (!strncmp(line, "size", 4)) {
            size = look_again(atoi(argv[1]));
            answer = size / MIB;
        } else if (!strncmp(line, "make", 4)) {
            answer = make();
        } else {
            int role = line[1] == 'n' ? TG_ROLE_ONLINE : TG_ROLE_OFFLINE;
            CHECK(is_ours);
            while (tg.role(1000) != role) {}
            await_share();
        }
        printf("%lld\n", (long long)answer);
        fflush(stdout);
    }
    return 0;
}
