/* An online program driven by lines on standard input; answers each with "ok NS", NS = CLOCK_MONOTONIC when it was done.
 *   launch COUNT NS   COUNT kernels of NS nanoseconds, one after the other on one stream, not waited for
 *   graph COUNT NS    one graph of COUNT kernels, captured once per (COUNT, NS) and launched
 *   sync              waits for everything launched
 *   burst COUNT NS    launch and sync
 *   forever           a kernel that never ends
 * Device ordinal: first argument, 0 by default. */
#include "tg.h"

int main(int argc, char **argv)
{
    char line[128];
    tg_context(argc > 1 ? atoi(argv[1]) : 0);
    CUfunction spin = tg_kernel("tg_spin_ns"), forever = tg_kernel("tg_forever");
    CUstream stream;
    CUgraphExec exec = 0;
    unsigned long long graph_count = 0, graph_ns = 0, tag = 1;
    MUST(cuStreamCreate(&stream, 1));
    printf("ok %llu\n", (unsigned long long)tg_now());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[16];
        unsigned long long count = 1, ns = 0;
        if (sscanf(line, "%15s %llu %llu", what, &count, &ns) < 1) continue;
        int burst = !strcmp(what, "burst");
        if (!strcmp(what, "launch") || burst) {
            for (unsigned long long i = 0; i < count; i++) tg_spin(spin, stream, ns, tag++);
        } else if (!strcmp(what, "graph")) {
            if (!exec || graph_count != count || graph_ns != ns) {
                CUgraph graph;
                MUST(cuStreamBeginCapture_v2(stream, 1));
                for (unsigned long long i = 0; i < count; i++) tg_spin(spin, stream, ns, 0);
                MUST(cuStreamEndCapture(stream, &graph));
                MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
                graph_count = count;
                graph_ns = ns;
            }
            MUST(cuGraphLaunch(exec, stream));
        } else if (!strcmp(what, "forever")) {
            MUST(cuLaunchKernel(forever, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
        } else if (strcmp(what, "sync")) {
            fprintf(stderr, "online: unknown command %s\n", what);
            return 2;
        }
        if (burst || !strcmp(what, "sync")) MUST(cuStreamSynchronize(stream));
        printf("ok %llu\n", (unsigned long long)tg_now());
        fflush(stdout);
    }
    return 0;
}
