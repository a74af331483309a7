/* An online engine that says its iterations. Arguments: NS of an iteration, NS between two, tokens of a request. It
 * serves one request after the other without a pause: a prompt, then a token an iteration. The next request comes in the
 * pause before the third token from the end, and waits. Each iteration is one kernel, whose tag is its number from 1 on; it says the
 * number as its free blocks. Prints "ready", and at SIGTERM how many iterations it ran and
 * how many of them it was asked for. At SIGUSR1 it closes the file of the library's page, as a daemon does that closes
 * what it did not open. */
#define _GNU_SOURCE
#include "tg.h"
#include "../../interposer/include/tidegate.h"
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

enum { PROMPT = 100, BLOCKS = 1 << 20, AHEAD = 3 };
static volatile sig_atomic_t stop, closes;
static void on_signal(int signal)
{
    if (signal == SIGTERM) stop = 1;
    else closes = 1;
}

static void close_page(void)
{
    DIR *all = opendir("/proc/self/fd");
    CHECK(all);
    for (struct dirent *entry; (entry = readdir(all));) {
        char link[256];
        ssize_t length = readlinkat(dirfd(all), entry->d_name, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (strstr(link, "tidegate-beats")) CHECK(!close(atoi(entry->d_name)));
    }
    closedir(all);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    uint64_t ns = strtoull(argv[1], 0, 10), gap_ns = strtoull(argv[2], 0, 10), tokens = strtoull(argv[3], 0, 10);
    struct timespec gap = {(time_t)(gap_ns / 2000000000u), (long)(gap_ns / 2 % 1000000000u)};
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    struct tg_api tg;
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    tg_context(0);
    CUfunction spin = tg_kernel("tg_spin_ns");
    CUstream stream;
    uint64_t ran = 0, said = 0;
    MUST(cuStreamCreate(&stream, 1));
    printf("ready\n");
    fflush(stdout);
    CHECK(!tg.requests_in_flight(1));
    while (!stop) {
        for (uint64_t token = 0; token < tokens && !stop; token++) {
            struct tg_iteration done = {.begin_ns = tg_now(), .blocks = BLOCKS, .free_blocks = ++ran};
            tg_spin(spin, stream, ns, ran);
            MUST(cuStreamSynchronize(stream));
            done.prompt = token ? 0 : PROMPT;
            done.batch = token ? 1 : 0;
            done.cached = token ? PROMPT + token : 0;
            uint64_t left = tokens - 1 - token;
            if (left <= AHEAD) CHECK(!tg.requests_in_flight(left ? 2 : 1));
            done.waiting = left && left <= AHEAD;
            done.waiting_tokens = left ? 0 : PROMPT;
            int asked = tg.beat(0, 0, 0), code = tg.beat(0, &done, sizeof done);
            CHECK(!asked || asked == -ENOTCONN);
            CHECK(!code || code == -ENOTCONN);
            said += !code;
            if (!code) {
                struct tg_iteration wrong = {.begin_ns = 2, .end_ns = 1};
                CHECK(tg.beat(99, &done, sizeof done) == -EINVAL && tg.beat(0, &done, 8) == -EINVAL);
                CHECK(tg.beat(0, &wrong, sizeof wrong) == -EINVAL);
            }
            if (closes) {
                closes = 0;
                close_page();
            }
            nanosleep(&gap, 0);
            if (left == AHEAD + 1) CHECK(!tg.requests_in_flight(2));
            nanosleep(&gap, 0);
        }
    }
    printf("%llu %llu\n", (unsigned long long)ran, (unsigned long long)said);
    return 0;
}
