/* A trainer whose units are counted kernels. Arguments: HOW, NS of a unit, how many units follow one another (default:
 * without end). HOW is
 *   obedient   begins each unit within a lease or an open gate, and says when it is over
 *   late       its units take twenty times as long as it says
 *   liar       says that a unit is over as soon as it is launched
 *   greedy     says its units, and waits for no lease
 *   frozen     stops (SIGSTOP) within the first unit of a lease, which takes as long as those of "late"
 * Prints "ready", and for each unit within a lease "NUMBER of UNITS until NS tokens TOKENS layers LAYERS": the lease as
 * it stood before the unit. Runs until it gets SIGTERM, and prints how many units it ran. */
#include "tg.h"
#include "../../interposer/include/tidegate.h"
#include <signal.h>

enum { SLOWER = 20, TOKENS = 512 };
static volatile sig_atomic_t stop;
static void on_term(int signal) { (void)signal; stop = 1; }

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    const char *how = argv[1];
    int late = !strcmp(how, "late"), liar = !strcmp(how, "liar"), greedy = !strcmp(how, "greedy");
    int frozen = !strcmp(how, "frozen");
    CHECK(late || liar || greedy || frozen || !strcmp(how, "obedient"));
    uint64_t said_ns = strtoull(argv[2], 0, 10), ns = late || frozen ? SLOWER * said_ns : said_ns, done = 0;
    uint32_t follow = argc > 3 ? (uint32_t)strtoul(argv[3], 0, 10) : 0;
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, 0);
    struct tg_api tg;
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    tg_context(0);
    CUfunction count = tg_kernel("tg_count");
    CUstream stream;
    CUdeviceptr counter;
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuMemAlloc_v2(&counter, 8));
    CHECK(tg.unit(99, 0, 0, 0, 0) == -EINVAL && tg.unit_done(99) == -EINVAL);
    CHECK(tg.lease(0, 0, 0, 0) == -EINVAL);
    printf("ready\n");
    fflush(stdout);
    for (uint64_t n = 0; !stop; n++) {
        uint32_t most = follow ? follow - (uint32_t)(n % follow) : 1000;
        CHECK(!tg.unit(0, n % 2, TOKENS, most, said_ns));
        struct tg_leased lease = {0};
        if (!greedy) {
            int code;
            do code = tg.lease(0, 100, &lease, sizeof lease);
            while (!stop && (code == -EAGAIN || code == -EINTR));
            if (stop) break;
            CHECK(!code);
            if (lease.until_ns) {
                printf("%llu of %u until %llu tokens %llu layers %u\n", (unsigned long long)n, lease.units,
                       (unsigned long long)lease.until_ns, (unsigned long long)lease.tokens, lease.resident_layers);
                fflush(stdout);
            }
        }
        void *args[] = {&counter, &ns, &n};
        if (cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, args, 0)) break; /* the signal came while it waited */
        done++;
        if (frozen && lease.until_ns) raise(SIGSTOP);
        if (liar) CHECK(!tg.unit_done(0));
        MUST(cuStreamSynchronize(stream));
        if (!liar) CHECK(!tg.unit_done(0));
    }
    CHECK(!tg.unit(0, 0, 0, 0, 0));
    printf("%llu\n", (unsigned long long)done);
    return 0;
}
