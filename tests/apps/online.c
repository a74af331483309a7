/* An online program driven by lines on standard input; answers each with "ok NS", NS = CLOCK_MONOTONIC when it was done.
 *   launch COUNT NS   COUNT kernels of NS nanoseconds, one after the other on one stream, not waited for
 *   graph COUNT NS    one graph of COUNT kernels, captured once per (COUNT, NS) and launched
 *   sync              waits for everything launched
 *   burst COUNT NS    launch and sync
 *   hold              a host function that does not return, and a kernel behind it: busy until it is told otherwise
 *   release           lets the host functions of all holds return, and waits for everything launched
 *   request COUNT NS GAP   a prefill of one kernel of 4 NS, then COUNT decode iterations: a graph of one kernel of NS,
 *                     waited for, and a gap of GAP nanoseconds between two; answers "ok END START LONGEST LAUNCHES": when the
 *                     last iteration was done, when the first launch was made, the longest gap, graph launches
 *   ahead COUNT NS    a prefill likewise, then COUNT decode iterations likewise, each launched before the one before it is
 *                     waited for, by an event: the device has no idle time between them
 *   orphan            a hold on a stream of its own, which is destroyed under it
 *   forever           a kernel that never ends
 *   requests COUNT    says that so many requests are in flight; answers "ok RESULT"
 *   try NS            one kernel of NS nanoseconds; answers "ok RESULT ERRNO", errno being 4321 before the call
 * Device ordinal: first argument, 0 by default. */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>

CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

static sem_t gate;

static void wait_for_release(void *unused)
{
    (void)unused;
    while (sem_wait(&gate)) {}
}

/* Waits until `at`: sleeps most of the way, since a gap must leave the processor to others, and spins the rest. */
static void until(uint64_t at)
{
    uint64_t now = tg_now();
    if (at > now + 150000) {
        struct timespec rest = {(time_t)((at - now - 100000) / 1000000000u), (long)((at - now - 100000) % 1000000000u)};
        nanosleep(&rest, 0);
    }
    while (tg_now() < at) {}
}

int main(int argc, char **argv)
{
    char line[128];
    tg_context(argc > 1 ? atoi(argv[1]) : 0);
    CUfunction spin = tg_kernel("tg_spin_ns"), forever = tg_kernel("tg_forever");
    CUstream stream;
    CUgraphExec exec = 0;
    unsigned long long graph_count = 0, graph_ns = 0, tag = 1;
    uint64_t first = 0, longest = 0;
    int holds = 0;
    MUST(sem_init(&gate, 0, 0));
    MUST(cuStreamCreate(&stream, 1));
    printf("ok %llu\n", (unsigned long long)tg_now());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[16];
        unsigned long long count = 1, ns = 0, gap = 0;
        if (sscanf(line, "%15s %llu %llu %llu", what, &count, &ns, &gap) < 1) continue;
        int ahead = !strcmp(what, "ahead"), request = ahead || !strcmp(what, "request");
        unsigned long long iterations = count;
        if (request) count = 1;
        int burst = !strcmp(what, "burst");
        if (!strcmp(what, "launch") || burst) {
            for (unsigned long long i = 0; i < count; i++) tg_spin(spin, stream, ns, tag++);
        } else if (!strcmp(what, "graph") || request) {
            if (!exec || graph_count != count || graph_ns != ns) {
                CUgraph graph;
                MUST(cuStreamBeginCapture_v2(stream, 1));
                for (unsigned long long i = 0; i < count; i++) tg_spin(spin, stream, ns, 0);
                MUST(cuStreamEndCapture(stream, &graph));
                MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
                graph_count = count;
                graph_ns = ns;
            }
            if (!request) {
                MUST(cuGraphLaunch(exec, stream));
            } else {
                uint64_t done;
                first = tg_now();
                longest = 0;
                tg_spin(spin, stream, 4 * ns, tag++);
                MUST(cuStreamSynchronize(stream));
                done = tg_now();
                if (ahead) {
                    CUevent events[2];
                    for (int i = 0; i < 2; i++) MUST(cuEventCreate(&events[i], 0));
                    for (unsigned long long i = 0; i < iterations; i++) {
                        MUST(cuGraphLaunch(exec, stream));
                        MUST(cuEventRecord(events[i % 2], stream));
                        if (i) MUST(cuEventSynchronize(events[(i - 1) % 2]));
                    }
                    MUST(cuStreamSynchronize(stream));
                    done = tg_now();
                    for (int i = 0; i < 2; i++) MUST(cuEventDestroy_v2(events[i]));
                } else for (unsigned long long i = 0; i < iterations; i++) {
                    uint64_t launched;
                    until(done + gap);
                    launched = tg_now();
                    if (launched - done > longest) longest = launched - done;
                    MUST(cuGraphLaunch(exec, stream));
                    MUST(cuStreamSynchronize(stream));
                    done = tg_now();
                }
                printf("ok %llu %llu %llu %llu\n", (unsigned long long)done, (unsigned long long)first,
                       (unsigned long long)longest, iterations);
                fflush(stdout);
                continue;
            }
        } else if (!strcmp(what, "forever")) {
            MUST(cuLaunchKernel(forever, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        } else if (!strcmp(what, "orphan")) {
            CUstream orphan;
            MUST(cuStreamCreate(&orphan, 1));
            MUST(cuLaunchHostFunc(orphan, wait_for_release, 0));
            tg_spin(spin, orphan, 1000, tag++);
            holds++;
            MUST(cuStreamDestroy_v2(orphan));
        } else if (!strcmp(what, "hold")) {
            MUST(cuLaunchHostFunc(stream, wait_for_release, 0));
            tg_spin(spin, stream, 1000, tag++);
            holds++;
        } else if (!strcmp(what, "release")) {
            for (; holds > 0; holds--) sem_post(&gate);
        } else if (!strcmp(what, "requests")) {
            int (*say)(uint32_t) = (int (*)(uint32_t))dlsym(RTLD_DEFAULT, "tg_requests_in_flight");
            printf("ok %d\n", say ? say((uint32_t)count) : -1);
            fflush(stdout);
            continue;
        } else if (!strcmp(what, "try")) {
            uint64_t tried_ns = count;
            void *args[] = {&tried_ns, &tag};
            errno = 4321;
            CUresult result = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
            printf("ok %d %d\n", result, errno);
            fflush(stdout);
            continue;
        } else if (strcmp(what, "sync")) {
            fprintf(stderr, "online: unknown command %s\n", what);
            return 2;
        }
        if (burst || !strcmp(what, "sync") || !strcmp(what, "release")) MUST(cuStreamSynchronize(stream));
        printf("ok %llu\n", (unsigned long long)tg_now());
        fflush(stdout);
    }
    return 0;
}
